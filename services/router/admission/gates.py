"""The hard gates: each a function from figures to the sentence of a refusal, or None.

They stand behind the prediction for what it does not see: decode workers that do not start what was
handed to them, a fleet that lost much of itself, KV that fills faster than it was promised.
"""

from __future__ import annotations

from common.messages import PriorityClass


def decode_queue(stuck: int, decode_workers: int, per_worker: int) -> str | None:
    """`stuck`: requests whose prompt is computed and whose first token is overdue."""
    limit = per_worker * decode_workers
    if stuck <= limit:
        return None
    return (
        f"{stuck} computed prompts wait for {decode_workers} decode workers to start them, "
        f"more than {per_worker} each"
    )


def kv_pressure(used: float, refuse_above: float) -> str | None:
    """`used`: share of all decode workers' KV that their engines report in use."""
    if used <= refuse_above:
        return None
    return f"{used:.0%} of the decode workers' KV is in use, more than {refuse_above:.0%}"


def kv_yields(used: float, yield_above: float, *, higher_live: int) -> str | None:
    """A request of the lowest class yields while KV is short and higher classes need it."""
    if used <= yield_above or not higher_live:
        return None
    return (
        f"{used:.0%} of the decode workers' KV is in use, more than {yield_above:.0%}, "
        f"and {higher_live} requests of higher classes need it"
    )


class Thinning:
    """Scales admission to `capacity / full_at` when less than that share of the decode capacity is
    healthy, lowest class first, without randomness: each arrival adds the share to refuse to a
    debt, and a refusal pays 1. The lowest class pays at once, each higher one only when the debt
    has grown by `debt_per_class` more because nobody below it came to pay."""

    def __init__(self, debt_per_class: float) -> None:
        self._debt_per_class = debt_per_class
        self._debt = 0.0

    def refuses(self, priority: PriorityClass, capacity: float, full_at: float) -> str | None:
        """`capacity`: share of the known decode slots that is healthy."""
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
