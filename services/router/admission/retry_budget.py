"""Limits later attempts to a share of all requests, so that failures do not multiply load.

A token bucket: every first attempt adds `share`, every later attempt takes 1, and `per_min` refills
the bucket slowly, so that the streams of a quiet fleet are recovered in the end. The bucket starts
full and holds `burst`, or as much as the largest decode worker may have if that is more, because
the loss of one worker must always be recoverable.
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
        """Retries left. `largest_worker`: the most requests that one decode worker may have."""
        return max(self._burst, float(largest_worker)) - self._spent

    def take(self, largest_worker: int, now: float) -> bool:
        """Takes one retry. False: the budget is used up, and nothing was taken."""
        if self._refilled is not None:
            self._spent = max(0.0, self._spent - self._per_second * (now - self._refilled))
        self._refilled = now
        if self.left(largest_worker) < 1:
            return False
        self._spent += 1
        return True
