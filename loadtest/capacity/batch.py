"""A batch beside the load: its lines run in what capacity the others leave.

As a gateway does (`services/gateway/jobs/line_work.py`), it has at most `waiting` lines in the
router's queue, and takes another one when one of them is placed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from common.messages import PriorityClass
from loadtest.capacity.report import ClientSample
from loadtest.capacity.virtual_time import VirtualTime
from loadtest.capacity.workers import DecodeModel
from loadtest.capacity.workload import RequestShape, drawn

PAUSE_SECONDS = 1.0


class BatchShape(NamedTuple):
    """A batch that never ends."""

    line: RequestShape
    #: Lines in the router's queue.
    waiting: int = 16
    seed: int = 2


class BatchLoad:
    """`submit` sends a line."""

    def __init__(
        self, shape: BatchShape, virtual: VirtualTime, submit: Callable[[ClientSample], None]
    ) -> None:
        self._shape = shape
        self._time = virtual
        self._submit = submit
        self._draw = random.Random(shape.seed)
        self._used: list[float] = []

    @property
    def idle_used(self) -> float:
        """The mean share of the decode slots left by other requests that lines had."""
        return sum(self._used) / max(1, len(self._used))

    def start(self) -> None:
        for _ in range(self._shape.waiting):
            self._next()

    def placed(self, sample: ClientSample) -> None:
        """Before that is noted in the sample."""
        if _is_line(sample) and not sample.placed:
            self._next()

    def refused(self, sample: ClientSample) -> None:
        if _is_line(sample) and not sample.placed:
            self._time.after(PAUSE_SECONDS, self._next)

    def sample(self, workers: Iterable[DecodeModel]) -> None:
        lines = left = 0
        for worker in workers:
            classes = [job.arrival.priority for job in worker.jobs.values()]
            of_worker = classes.count(PriorityClass.BATCH)
            lines += of_worker
            left += worker.capacity.max_num_seqs - (len(classes) - of_worker)
        if left > 0:
            self._used.append(lines / left)

    def _next(self) -> None:
        arrival = drawn(self._draw, self._shape.line, self._time.now)
        line = arrival._replace(priority=PriorityClass.BATCH)
        self._submit(ClientSample(line, self._time.now))


def _is_line(sample: ClientSample) -> bool:
    return sample.arrival.priority is PriorityClass.BATCH
