"""Decides the next step of a rolling restart: sans-IO, called a few times a second.

    CHECK ──others ready ≥ floor──▶ DRAIN ──empty, or time──▶ RETURN ──ready anew──▶ SETTLE ──▶ next

One worker is restarted at a time, the roles in turn, so that with a changed fingerprint a new pair
can serve after two steps. A worker must return with a new incarnation and stay ready for a while
before the next one is restarted. The first failure ends the rollout, and the remaining workers are
left alone. While no router answers, only the time limits apply.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from common.messages import Role
from common.net.admin_rows import WorkerRow

WELL = frozenset({"ready", "warm"})
"""States of a worker that could serve; a warm one is woken when too few others are ready."""


class Step(enum.Enum):
    CHECK = "wait for others of its role"
    DRAIN = "drain"
    RETURN = "come back"
    SETTLE = "stay ready"


@dataclass(frozen=True, slots=True)
class Limits:
    """How many workers must stay, and how long a step may take."""

    #: Ready workers of a role that must remain while one is restarted.
    floor: int = 1
    #: Seconds in which running requests may finish.
    drain: float = 60.0
    #: Seconds in which a worker must become ready.
    ready: float = 180.0
    #: Seconds that a restarted worker must stay ready.
    settle: float = 5.0


@dataclass(frozen=True, slots=True)
class Drain:
    worker: WorkerRow


@dataclass(frozen=True, slots=True)
class Restart:
    worker: WorkerRow


@dataclass(frozen=True, slots=True)
class Resume:
    """The worker was drained and is not restarted after all."""

    worker: WorkerRow


@dataclass(frozen=True, slots=True)
class Report:
    sentence: str


Action = Drain | Restart | Resume | Report


def in_turn(prefill: Sequence[str], decode: Sequence[str]) -> list[str]:
    """One of each role after the other."""
    return [name for pair in zip_longest(prefill, decode) for name in pair if name is not None]


def _others(workers: Mapping[str, WorkerRow], part: Role, name: str) -> list[WorkerRow]:
    """The workers that do what this role does, mixed ones included, without the one of the name."""
    others = [worker for worker in workers.values() if worker.name != name]
    return [worker for worker in others if part in Role(worker.role).parts]


class Rollout:
    """The state of one rolling restart."""

    def __init__(self, names: Sequence[str], limits: Limits, now: float) -> None:
        #: Names of the workers that were restarted.
        self.done: list[str] = []
        #: Names of the workers that were not restarted yet, in action.
        self.left = list(names)
        #: Why the rollout ended early; empty while it has not failed.
        self.failure = ""
        self._limits = limits
        self._step = Step.CHECK
        self._since = now
        self._before: WorkerRow | None = None
        self._after: WorkerRow | None = None

    @property
    def over(self) -> bool:
        return bool(self.failure) or not self.left

    def fail(self, sentence: str) -> list[Action]:
        """The shell could not do what was ordered. Idempotent."""
        if self.failure:
            return []
        self.failure = sentence
        if self._step is Step.DRAIN and self._before is not None:
            return [Resume(self._before)]
        return []

    def observe(self, workers: Mapping[str, WorkerRow] | None, now: float) -> list[Action]:
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
        self,
        workers: Mapping[str, WorkerRow],
        worker: WorkerRow | None,
        waited: float,
        now: float,
    ) -> list[Action]:
        name, floor = self.left[0], self._limits.floor
        if worker is not None and worker.state in WELL:
            others = {part: _others(workers, part, name) for part in Role(worker.role).parts}
            ready = [sum(w.state in WELL for w in of_part) for of_part in others.values()]
            if min(ready) >= floor:
                self._before = worker
                self._enter(Step.DRAIN, now)
                return [Drain(worker), Report(f"{name}: drains {worker.requests} requests")]
            part = min(others, key=lambda part: len(others[part]))
            if len(others[part]) < floor:
                return self.fail(
                    f"{name} cannot be spared: {len(others[part])} other {part} workers, and "
                    f"--floor is {floor}; --floor 0 accepts that none is left meanwhile"
                )
        if waited > self._limits.ready:
            return self.fail(f"{name} and {floor} of its role were not ready together in time")
        return []

    def _drain(self, worker: WorkerRow | None, waited: float, now: float) -> list[Action]:
        assert self._before is not None
        name = self._before.name
        if worker is not None and worker.incarnation != self._before.incarnation:
            return self.fail(f"{name} was restarted by another command while it drained")
        if worker is not None and worker.requests and waited <= self._limits.drain:
            return []
        if worker is None and waited <= self._limits.drain:
            return []
        self._enter(Step.RETURN, now)
        left = worker.requests if worker is not None else 0
        moves = f"; {left} requests move to others" if left else ""
        return [Restart(self._before), Report(f"{name}: restarts{moves}")]

    def _return(self, worker: WorkerRow | None, waited: float, now: float) -> list[Action]:
        assert self._before is not None
        fresh = worker is not None and worker.incarnation != self._before.incarnation
        if fresh and worker is not None and worker.state in WELL:
            self._after = worker
            self._enter(Step.SETTLE, now)
            return [Report(f"{worker.name}: is back after {waited:.1f} s")]
        if waited > self._limits.ready:
            state = "is not there" if worker is None else f"is {worker.state}"
            old = "" if fresh or worker is None else ", the process is still the old one"
            return self.fail(
                f"{self._before.name} {state} {waited:.0f} s after its restart{old}; see its log"
            )
        return []

    def _settle(
        self,
        workers: Mapping[str, WorkerRow] | None,
        worker: WorkerRow | None,
        waited: float,
        now: float,
    ) -> list[Action]:
        assert self._before is not None
        assert self._after is not None
        name = self._after.name
        if workers is not None:
            if worker is None or worker.incarnation != self._after.incarnation:
                return self.fail(f"{name} died again {waited:.1f} s after it was back; see its log")
            if worker.state not in WELL:
                return self.fail(f"{name} is {worker.state} {waited:.1f} s after it was back")
        if waited < self._limits.settle:
            return []
        self.done.append(self.left.pop(0))
        self._enter(Step.CHECK, now)
        if self._after.fingerprint != self._before.fingerprint:
            return [Report(f"{name}: has another fingerprint; streams move to its like only")]
        return []

    def _enter(self, step: Step, now: float) -> None:
        self._step, self._since = step, now
