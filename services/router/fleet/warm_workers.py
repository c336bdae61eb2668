"""When a warm worker is woken, and when it may sleep again. Pure.

A warm decode worker has its model loaded and no KV. It is worth waking when the queue of its model
will take longer than it does to wake, or when too few of the model's decode workers are awake. One
at a time is woken: the next is judged with the one before in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WAKE_SECONDS = 1.0
"""How long waking takes, while no worker of the model has shown it."""


class WarmWorker(NamedTuple):
    """A warm decode worker that could be given requests if it were awake."""

    name: str
    asleep: bool
    #: Whether it was ordered to wake and does not say yet that it did.
    waking: bool = False
    #: Seconds that it took to wake last; 0 = not known.
    wake_s: float = 0.0
    #: Seconds for which it has had nothing to do; 0 = it has.
    idle_s: float = 0.0


class Wanted(NamedTuple):
    """Which worker is to be awake or asleep, and why."""

    name: str
    on: bool
    sentence: str


def choose(
    workers: Sequence[WarmWorker], *, awake: int, floor: int, queue_s: float, idle_max_s: float
) -> Wanted | None:
    """None: all is as it should be. `awake`: ready decode workers of the model, warm or not.
    `queue_s`: seconds until the queue of the model is empty, as predicted; 0 = nothing waits."""
    asleep = [worker for worker in workers if worker.asleep and not worker.waking]
    waking = sum(worker.waking for worker in workers)
    if asleep and awake + waking < floor:
        reason = f"{awake} of the {floor} decode workers that stay awake are there"
        return Wanted(asleep[0].name, on=True, sentence=reason)
    if asleep and not waking:
        wake_s = wake_seconds(workers)
        if queue_s > wake_s:
            reason = f"the queue takes {queue_s:.2f} s and waking takes {wake_s:.2f} s"
            return Wanted(asleep[0].name, on=True, sentence=reason)
    if queue_s or waking or awake <= floor:
        return None
    for worker in workers:
        if not worker.asleep and worker.idle_s >= idle_max_s:
            reason = f"it had nothing to do for {worker.idle_s:.0f} s"
            return Wanted(worker.name, on=False, sentence=reason)
    return None


def wake_seconds(workers: Sequence[WarmWorker]) -> float:
    """The longest that any of them took last."""
    return max((worker.wake_s for worker in workers), default=0.0) or WAKE_SECONDS
