"""Whether one running stream would better go on at another decode worker. Sans-IO.

Theory of operation: every second the decode worker with the most streams is compared with the one
that has the fewest. A stream that moves makes the steps of the one shorter and those of the other
longer, for as many tokens as it has still to make; and if the head of the queue fits where it was
and nowhere else, it need not wait for its end. That is the gain, in seconds of all streams
together. The cost is the pause of the one that moves. A move is worth making if it gains more than
`gain_min` times its cost. Two workers that a stream moved between are left alone for `cooldown_ms`,
in either direction, so that none goes to and fro. The verdict is kept, for `baton ctl balance`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from common.config import RebalanceConfig
from common.identity import AttemptKey

LOOK_SECONDS = 1.0
PAIRS_MAX = 256


class Load(NamedTuple):
    """A decode worker that is ready."""

    identity: str
    name: str
    #: That it has.
    streams: int
    #: That it could have besides.
    slots: int
    #: KV tokens that are free.
    kv_free: int


class Mover(NamedTuple):
    """A stream of the worker with the most, which could leave it."""

    key: AttemptKey
    #: KV tokens that it holds, and would need at the other worker.
    kv_held: int
    kv_need: int
    #: Tokens that it has probably still to make.
    remaining: int
    #: Seconds for which it would pause.
    pause_s: float


class Verdict(NamedTuple):
    """One look. An instant is in seconds on the core's clock."""

    at: float
    #: The stream that should move; None = none should.
    key: AttemptKey | None
    #: Identities of the worker that it should leave, and of the one where it should go on.
    source: str
    target: str
    gain_s: float
    cost_s: float
    #: The reason, as one sentence.
    sentence: str


class Rebalance:
    """Of one model."""

    def __init__(self, config: RebalanceConfig) -> None:
        self._config = config
        #: When a stream last moved between two workers, by their identities, sorted.
        self._moved: dict[tuple[str, str], float] = {}
        #: The latest look; None = there was none yet.
        self.verdict: Verdict | None = None

    @property
    def mode(self) -> str:
        return self._config.mode

    def due(self, now: float) -> bool:
        seen = self.verdict
        return self.mode != "off" and (seen is None or now - seen.at >= LOOK_SECONDS)

    def record_move(self, source: str, target: str, now: float) -> None:
        """A stream leaves the one for the other."""
        pair = _pair(source, target)
        self._moved.pop(pair, None)
        self._moved[pair] = now
        if len(self._moved) > PAIRS_MAX:
            del self._moved[next(iter(self._moved))]

    def stay(self, sentence: str, now: float) -> Verdict:
        """A look that found nothing to do."""
        self.verdict = Verdict(now, None, "", "", 0.0, 0.0, sentence)
        return self.verdict

    def look(
        self,
        pair: tuple[Load, Load],
        movers: Sequence[Mover],
        head_need: int,
        step_s: Callable[[int], float],
        now: float,
    ) -> Verdict:
        """`pair`: the worker with the most streams and the one with the fewest. `head_need`: KV
        tokens for which the head of the queue waits and that no worker has free; 0 = it does not.
        `step_s`: seconds of a step of so many streams."""
        source, target = pair
        since = self._moved.get(_pair(source.identity, target.identity))
        if since is not None and now - since < self._config.cooldown_ms / 1000:
            ago = f"{now - since:.0f} s ago"
            return self.stay(f"a stream moved between {source.name} and {target.name} {ago}", now)
        able = [m for m in movers if target.slots > 0 and m.kv_need <= target.kv_free]
        if not able:
            return self.stay(f"no stream of {source.name} could go on at {target.name}", now)
        gains = [_gain_s(source, target, mover, head_need, step_s) for mover in able]
        best = max(range(len(able)), key=lambda n: gains[n] - able[n].pause_s)
        mover, gain, cost = able[best], gains[best], able[best].pause_s
        told = (
            f"{source.name} has {source.streams} streams and {target.name} {target.streams}: "
            f"a move gains {gain * 1000:.0f} ms and costs {cost * 1000:.0f} ms"
        )
        if gain <= self._config.gain_min * cost:
            wanted = f"{self._config.gain_min:g} times its cost is asked for"
            return self.stay(f"{told}; more than {wanted}", now)
        self.verdict = Verdict(now, mover.key, source.identity, target.identity, gain, cost, told)
        return self.verdict


def _gain_s(
    source: Load, target: Load, mover: Mover, head_need: int, step_s: Callable[[int], float]
) -> float:
    """Seconds that all streams of both workers and the head of the queue save together."""
    a, b = source.streams, target.streams
    before = a * step_s(a) + b * step_s(b)
    after = (a - 1) * step_s(a - 1) + (b + 1) * step_s(b + 1)
    gain = mover.remaining * (before - after)
    if 0 < head_need <= source.kv_free + mover.kv_held:
        gain += mover.remaining * step_s(a)
    return gain


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
