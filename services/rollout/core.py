"""What a rolling restart does next: sans-IO, looked at a few times a second.

    CHECK ──others ready ≥ floor──▶ DRAIN ──empty, or time──▶ RETURN ──ready anew──▶ SETTLE ──▶ next

One worker at a time, the roles in turn, so that where fingerprints change, a pair of the new one
stands after two steps. A worker must come back as another incarnation and stay ready for a while:
each is the canary of those after it. The first thing that is not as it should be ends the rollout,
and nothing further is touched. While no router answers, only time passes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest


class Step(enum.Enum):
    CHECK = "wait for its fellows"
    DRAIN = "drain"
    RETURN = "come back"
    SETTLE = "stay ready"


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker as the router shows it."""

    name: str
    role: str
    state: str
    incarnation: str
    fingerprint: str
    pid: int
    requests: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and `floor`: ready workers of a role that must be left while one is away."""

    floor: int = 1
    drain: float = 60.0
    ready: float = 180.0
    settle: float = 5.0


@dataclass(frozen=True, slots=True)
class Drain:
    worker: Seen


@dataclass(frozen=True, slots=True)
class Restart:
    worker: Seen


@dataclass(frozen=True, slots=True)
class Resume:
    """It was not restarted after all."""

    worker: Seen


@dataclass(frozen=True, slots=True)
class Say:
    sentence: str


Order = Drain | Restart | Resume | Say


def in_turn(prefill: Sequence[str], decode: Sequence[str]) -> list[str]:
    """One of each role after the other."""
    return [name for pair in zip_longest(prefill, decode) for name in pair if name is not None]


class Rollout:
    """`done`: names restarted; `left`: those not begun; `failure`: why it ended before its time."""

    def __init__(self, names: Sequence[str], limits: Limits, now: float) -> None:
        self.done: list[str] = []
        self.left = list(names)
        self.failure = ""
        self._limits = limits
        self._step = Step.CHECK
        self._since = now
        self._before: Seen | None = None
        self._after: Seen | None = None

    @property
    def over(self) -> bool:
        return bool(self.failure) or not self.left

    def fail(self, sentence: str) -> list[Order]:
        """The shell could not do what was ordered. Idempotent."""
        if self.failure:
            return []
        self.failure = sentence
        if self._step is Step.DRAIN and self._before is not None:
            return [Resume(self._before)]
        return []

    def look(self, workers: Mapping[str, Seen] | None, now: float) -> list[Order]:
        """`workers`: those that are there, by name; None while no router answers."""
        if self.over:
            return []
        waited, worker = now - self._since, (workers or {}).get(self.left[0])
        match self._step:
            case Step.CHECK:
                return self._check(workers or {}, worker, waited, now)
            case Step.DRAIN:
                return self._drain(worker, waited, now)
            case Step.RETURN:
                return self._return(worker, waited, now)
            case Step.SETTLE:
                return self._settle(workers, worker, waited, now)

    def _check(
        self, workers: Mapping[str, Seen], worker: Seen | None, waited: float, now: float
    ) -> list[Order]:
        name, floor = self.left[0], self._limits.floor
        if worker is not None and worker.state == "ready":
            fellows = [w for w in workers.values() if w.role == worker.role and w.name != name]
            ready = sum(w.state == "ready" for w in fellows)
            if ready >= floor:
                self._before = worker
                self._become(Step.DRAIN, now)
                return [Drain(worker), Say(f"{name}: drains {worker.requests} requests")]
            if len(fellows) < floor:
                return self.fail(
                    f"{name} cannot be spared: {len(fellows)} other {worker.role} workers, and "
                    f"--floor is {floor}; --floor 0 accepts that none is left meanwhile"
                )
        if waited > self._limits.ready:
            return self.fail(f"{name} and {floor} of its role were not ready together in time")
        return []

    def _drain(self, worker: Seen | None, waited: float, now: float) -> list[Order]:
        assert self._before is not None
        name = self._before.name
        if worker is not None and worker.incarnation != self._before.incarnation:
            return self.fail(f"{name} was restarted by somebody else while it drained")
        if worker is not None and worker.requests and waited <= self._limits.drain:
            return []
        if worker is None and waited <= self._limits.drain:
            return []
        self._become(Step.RETURN, now)
        left = worker.requests if worker is not None else 0
        moves = f"; {left} requests move to others" if left else ""
        return [Restart(self._before), Say(f"{name}: restarts{moves}")]

    def _return(self, worker: Seen | None, waited: float, now: float) -> list[Order]:
        assert self._before is not None
        fresh = worker is not None and worker.incarnation != self._before.incarnation
        if fresh and worker is not None and worker.state == "ready":
            self._after = worker
            self._become(Step.SETTLE, now)
            return [Say(f"{worker.name}: is back after {waited:.1f} s")]
        if waited > self._limits.ready:
            state = "is not there" if worker is None else f"is {worker.state}"
            old = "" if fresh or worker is None else ", the process is still the old one"
            return self.fail(
                f"{self._before.name} {state} {waited:.0f} s after its restart{old}; see its log"
            )
        return []

    def _settle(
        self, workers: Mapping[str, Seen] | None, worker: Seen | None, waited: float, now: float
    ) -> list[Order]:
        assert self._before is not None
        assert self._after is not None
        name = self._after.name
        if workers is not None:
            if worker is None or worker.incarnation != self._after.incarnation:
                return self.fail(f"{name} died again {waited:.1f} s after it was back; see its log")
            if worker.state != "ready":
                return self.fail(f"{name} is {worker.state} {waited:.1f} s after it was back")
        if waited < self._limits.settle:
            return []
        self.done.append(self.left.pop(0))
        self._become(Step.CHECK, now)
        if self._after.fingerprint != self._before.fingerprint:
            return [Say(f"{name}: has another fingerprint, and pairs with its like only")]
        return []

    def _become(self, step: Step, now: float) -> None:
        self._step, self._since = step, now
