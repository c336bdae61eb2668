"""Who is there, counted in one pass: it runs whenever a worker's state changes, so a fleet of
thousands that dials in pays for it thousands of times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from common.messages import Capacity, Role
from services.router.records import Worker
from services.router.state import WorkerState
from services.router.tables import Shape


class Census(NamedTuple):
    """`decodes`, `shapes`: of all decode workers that are not away, ready or not. `model`,
    `block_tokens`: of the first ready one, else empty and 0. `restores`: of all that `shapes` are
    of."""

    prefill_ready: int
    decode_ready: int
    decodes: int
    shapes: tuple[Shape, ...]
    model: str
    block_tokens: int
    restores: bool


def census(workers: Iterable[Worker]) -> Census:
    prefill_ready = decode_ready = decodes = 0
    ready: Worker | None = None
    first: dict[Capacity, Worker] = {}
    for worker in workers:
        state = worker.state
        if worker.away:
            continue
        if worker.role is not Role.DECODE:
            prefill_ready += state is WorkerState.READY
            continue
        decodes += 1
        if state is WorkerState.READY:
            decode_ready += 1
            ready = ready or worker
        first.setdefault(worker.capacity, worker)
    shapes = [
        Shape(w.capacity.max_model_len, w.kv_tokens_max, w.capacity.block_tokens)
        for w in first.values()
    ]
    return Census(
        prefill_ready=prefill_ready,
        decode_ready=decode_ready,
        decodes=decodes,
        shapes=tuple(dict.fromkeys(shapes)),
        model=ready.model if ready else "",
        block_tokens=ready.capacity.block_tokens if ready else 0,
        restores=bool(first) and all(capacity.restores for capacity in first),
    )
