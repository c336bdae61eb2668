"""How fast each worker is beside the curve of its fleet. The curve has the shape, a worker one
factor on it.

A factor near 1 is given as 1: what is measured of equal workers differs by some percent, and they
must not be preferred to each other for that.
"""

from __future__ import annotations

from collections import OrderedDict

from services.router.estimates.ratio import Ratio

WORKERS_MAX = 4_096
TRUST_SAMPLES = 8
SPEED_MIN, SPEED_MAX = 0.05, 20.0
ALIKE = 1.15


class WorkerSpeeds:
    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._ratios: OrderedDict[str, Ratio] = OrderedDict()

    def add(self, worker: str, expected: float, measured: float) -> None:
        """The worker took `measured` seconds for what takes `expected` on the curve."""
        ratio = self._ratios.get(worker)
        if ratio is None:
            ratio = self._ratios[worker] = Ratio(self._memory)
            if len(self._ratios) > WORKERS_MAX:
                self._ratios.popitem(last=False)
        else:
            self._ratios.move_to_end(worker)
        ratio.add(expected, measured)

    def known(self, worker: str) -> bool:
        """Whether enough was measured of it."""
        ratio = self._ratios.get(worker)
        return ratio is not None and ratio.count >= TRUST_SAMPLES

    def measured(self, worker: str) -> float:
        """1 is the speed of the curve, 2 is twice as fast."""
        if not self.known(worker):
            return 1.0
        return min(SPEED_MAX, max(SPEED_MIN, self._ratios[worker].value(1.0)))

    def distinct(self, worker: str) -> float:
        """The same; 1 if it is near it."""
        speed = self.measured(worker)
        return 1.0 if 1 / ALIKE < speed < ALIKE else speed
