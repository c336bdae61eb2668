"""From probes to a verdict, with hysteresis; pure.

A probe is a number with two limits. A verdict gets worse at once when a probe fails `WORSE_AFTER`
times in a row and better only after `BETTER_AFTER` good rounds, so that a flapping probe does not
flap the fleet.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from services.health.metrics.merge import Daemon

WORSE_AFTER = 2
BETTER_AFTER = 3


class HealthLevel(enum.IntEnum):
    """Levels of health, in order: a higher value is worse."""

    UP = 0
    DEGRADED = 1
    DOWN = 2


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement with its two limits."""

    name: str
    value: float
    #: A value above this makes the verdict DEGRADED.
    degraded_above: float
    #: A value above this makes the verdict DOWN.
    down_above: float
    #: What the value means to an operator.
    sentence: str
    #: The daemon that was measured; None for the host itself.
    about: Daemon | None = None

    @property
    def verdict(self) -> HealthLevel:
        if self.value > self.down_above:
            return HealthLevel.DOWN
        return HealthLevel.DEGRADED if self.value > self.degraded_above else HealthLevel.UP


@dataclass(slots=True)
class VerdictHysteresis:
    """The standing verdict of one host."""

    verdict: HealthLevel = HealthLevel.UP
    reasons: tuple[str, ...] = ()
    _worse: int = field(default=0)
    _better: int = field(default=0)

    def round(self, probes: list[Probe]) -> bool:
        """Takes one round of probes; True when the verdict changed."""
        seen = max((probe.verdict for probe in probes), default=HealthLevel.UP)
        before = self.verdict
        self._worse = self._worse + 1 if seen > self.verdict else 0
        self._better = self._better + 1 if seen < self.verdict else 0
        if self._worse >= WORSE_AFTER or self._better >= BETTER_AFTER:
            self.verdict = seen
            self._worse = self._better = 0
        self.reasons = tuple(p.sentence for p in probes if p.verdict is not HealthLevel.UP)
        return self.verdict is not before
