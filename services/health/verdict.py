"""From probes to a verdict, with hysteresis; pure.

A probe is a number with two limits. A verdict gets worse at once when a probe fails `WORSE_AFTER`
times in a row and better only after `BETTER_AFTER` good rounds, so that a flapping probe does not
flap the fleet.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from services.health.merge import Daemon

WORSE_AFTER = 2
BETTER_AFTER = 3


class Verdict(enum.IntEnum):
    """Ordered: higher is worse."""

    UP = 0
    DEGRADED = 1
    DOWN = 2


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement. It is degraded above `degraded_above`, down above `down_above`; `sentence`
    says what it means to an operator. `about`: the daemon that it is of, None = the host."""

    name: str
    value: float
    degraded_above: float
    down_above: float
    sentence: str
    about: Daemon | None = None

    @property
    def verdict(self) -> Verdict:
        if self.value > self.down_above:
            return Verdict.DOWN
        return Verdict.DEGRADED if self.value > self.degraded_above else Verdict.UP


@dataclass(slots=True)
class Judge:
    """The standing verdict of one host."""

    verdict: Verdict = Verdict.UP
    reasons: tuple[str, ...] = ()
    _worse: int = field(default=0)
    _better: int = field(default=0)

    def round(self, probes: list[Probe]) -> bool:
        """Takes one round of probes; True when the verdict changed."""
        seen = max((probe.verdict for probe in probes), default=Verdict.UP)
        before = self.verdict
        self._worse = self._worse + 1 if seen > self.verdict else 0
        self._better = self._better + 1 if seen < self.verdict else 0
        if self._worse >= WORSE_AFTER or self._better >= BETTER_AFTER:
            self.verdict = seen
            self._worse = self._better = 0
        self.reasons = tuple(p.sentence for p in probes if p.verdict is not Verdict.UP)
        return self.verdict is not before
