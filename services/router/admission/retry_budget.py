"""Attempts after the first, kept to a share of all requests so that failures do not multiply load.

A token bucket: every first attempt adds `share`, every later one takes 1, and a trickle of
`per_min` lets the streams of a quiet fleet go on in the end. It starts full and holds `burst`, or
what the largest decode worker runs if that is more, since the loss of one worker must always be
recoverable.
"""

from __future__ import annotations


class RetryBudget:
    def __init__(self, share: float, burst: float, per_min: float = 0.0) -> None:
        self._share = share
        self._burst = burst
        self._per_second = per_min / 60
        self._spent = 0.0
        self._refilled: float | None = None

    def first_attempt(self) -> None:
        self._spent = max(0.0, self._spent - self._share)

    def left(self, largest_worker: int) -> float:
        return max(self._burst, float(largest_worker)) - self._spent

    def take(self, largest_worker: int, now: float) -> bool:
        """False: over the budget, and nothing was taken."""
        if self._refilled is not None:
            self._spent = max(0.0, self._spent - self._per_second * (now - self._refilled))
        self._refilled = now
        if self.left(largest_worker) < 1:
            return False
        self._spent += 1
        return True
