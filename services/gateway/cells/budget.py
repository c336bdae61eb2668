"""Limits how many refused requests are tried in another cell, so that overload does not double.

A token bucket: every request adds `share`, and every refusal that is tried again takes 1. It starts
full and holds `SPILLS_AT_ONCE`.
"""

from __future__ import annotations

SPILLS_AT_ONCE = 10.0


class SpillBudget:
    def __init__(self, share: float) -> None:
        self._share = share
        self._left = SPILLS_AT_ONCE if share else 0.0

    def opened(self) -> None:
        """A request came."""
        self._left = min(SPILLS_AT_ONCE, self._left + self._share)

    def take(self) -> bool:
        """False: the budget is used up, and nothing was taken."""
        if self._left < 1:
            return False
        self._left -= 1
        return True
