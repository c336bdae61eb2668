"""How many requests of the lowest class may begin on a decode worker.

Requests that begin together end together, where their answers are alike, and until then no slot of
the worker becomes free. So one begins where another request has ended, and beyond that no faster
than if the slots were filled evenly over the time that an answer takes. Whatever began so ends so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Of one decode worker. Instants are in seconds on the core's clock."""

    #: How many may begin, as of `at`; what is over the limit at the next look is forgotten.
    left: float = 0.0
    at: float = 0.0

    def allows(self, now: float, seconds: float, most: int) -> bool:
        """Whether another may begin. `seconds`: after which one more may if none ends. `most`:
        how many may begin together."""
        passed = (now - self.at) / seconds if seconds > 0 else most
        self.left, self.at = min(most, self.left + passed), now
        return self.left >= 1

    def begun(self) -> None:
        self.left = max(0.0, self.left - 1)

    def ended(self) -> None:
        """Any request of the worker."""
        self.left += 1
