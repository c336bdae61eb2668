"""The hard gates: each is a function from figures to the sentence of a refusal, or None.

They cover what the prediction does not see: decode workers that do not start the prompts handed to
them, a fleet that lost much of its capacity, and KV that fills faster than it was promised.
"""

from __future__ import annotations

from common.messages import PriorityClass


def decode_queue(overdue: int, decode_workers: int, per_worker: int) -> str | None:
    """`overdue`: requests whose prompt is computed and whose first token is late."""
    limit = per_worker * decode_workers
    if overdue <= limit:
        return None
    return (
        f"{overdue} computed prompts wait for {decode_workers} decode workers to start them, "
        f"more than {per_worker} each"
    )


def kv_pressure(used: float, refuse_above: float) -> str | None:
    """`used`: share of the decode workers' KV that their engines report in use."""
    if used <= refuse_above:
        return None
    return f"{used:.0%} of the decode workers' KV is in use, more than {refuse_above:.0%}"


def kv_yields(used: float, yield_above: float, *, higher_live: int) -> str | None:
    """A request of the lowest class yields while KV is scarce and higher classes need it."""
    if used <= yield_above or not higher_live:
        return None
    return (
        f"{used:.0%} of the decode workers' KV is in use, more than {yield_above:.0%}, "
        f"and {higher_live} requests of higher classes need it"
    )


class ProportionalShedder:
    """Load shedding in proportion to lost capacity, without randomness.

    While the healthy share of the decode capacity is below `full_at`, `capacity / full_at` of the
    arrivals are admitted. Each arrival adds the share to refuse to a debt, and each refusal takes 1
    from it. An arrival of the lowest class is refused as soon as the debt reaches 1; each higher
    class only when the debt is `debt_per_class` greater, so the lowest class is shed first.
    """

    def __init__(self, debt_per_class: float) -> None:
        self._debt_per_class = debt_per_class
        self._debt = 0.0

    def shed(self, priority: PriorityClass, capacity: float, full_at: float) -> str | None:
        """Counts one arrival. Returns the sentence of its refusal, or None: it is admitted.

        `capacity`: healthy share of the known decode slots.
        """
        if capacity >= full_at:
            self._debt = 0.0
            return None
        steps = max(PriorityClass) - priority
        limit = 1.0 + steps * self._debt_per_class
        highest = 1.0 + max(PriorityClass) * self._debt_per_class
        self._debt = min(highest, self._debt + 1.0 - capacity / full_at)
        if self._debt < limit:
            return None
        self._debt -= 1.0
        return f"only {capacity:.0%} of the decode capacity is healthy, and work waits for it"
