"""The fleet in figures, for gateways and for the check of a request's size.

One pass over the workers computes all of it, because it runs whenever the state of a worker
changes: when a fleet of thousands joins, it runs thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from common.blocks import KvGroup, kv_need
from common.messages import ADAPTERS_MAX, Capacity, ServedAdapter
from common.model.adapters import name_of_adapter
from services.router.placement.types import ResourceRequest
from services.router.records.worker import Worker


class DecodeLimits(NamedTuple):
    """What a decode worker can hold at most, when it is idle."""

    #: Tokens of the longest sequence.
    max_model_len: int
    #: KV tokens that may be promised.
    kv_tokens_max: int
    #: Tokens in one KV block.
    block_tokens: int
    kv_groups: tuple[KvGroup, ...] = ()

    def fit(self, request: ResourceRequest) -> bool:
        needed = kv_need(request.total_tokens, self.block_tokens, self.kv_groups)
        return needed <= self.kv_tokens_max and request.total_tokens <= self.max_model_len


class FleetSummary(NamedTuple):
    """Ready means `Worker.ready`, which placement goes by too: it may be given requests. Decode
    workers that are away are left out, except of `reason`."""

    #: Prefill workers that are ready.
    prefill_ready: int
    #: Decode workers that are ready.
    decode_ready: int
    #: Why no decode worker is ready; empty = one is.
    reason: str
    #: The different limits of the decode workers, ready or not.
    decode_limits: tuple[DecodeLimits, ...]
    #: The block size of the first ready decode worker; 0 = none is ready, or it keeps no prefixes.
    block_tokens: int
    #: Whether all decode workers, ready or not, can continue a stream exactly.
    restores: bool
    #: The LoRA adapters that they have, by name, each name once.
    adapters: tuple[ServedAdapter, ...]


def summarize(workers: Iterable[Worker]) -> FleetSummary:
    prefill_ready = decode_ready = 0
    ready: Worker | None = None
    states: dict[str, int] = {}
    first: dict[Capacity, Worker] = {}
    adapters: dict[ServedAdapter, int] = {}
    for worker in workers:
        prefill_ready += worker.ready and worker.role.prefills
        if not worker.role.decodes:
            continue
        state = worker.availability
        states[state] = states.get(state, 0) + 1
        if worker.away:
            continue
        if worker.ready:
            decode_ready += 1
            ready = ready or worker
        first.setdefault(worker.capacity, worker)
        for status in worker.adapter_statuses:
            if not status.error:
                served = ServedAdapter(status.id, status.path)
                adapters[served] = adapters.get(served, 0) + 1
    limits = [
        DecodeLimits(of.max_model_len, worker.kv_tokens_max, of.block_tokens, of.kv_groups)
        for of, worker in first.items()
    ]
    return FleetSummary(
        prefill_ready=prefill_ready,
        decode_ready=decode_ready,
        reason="" if ready else _none_ready(states),
        decode_limits=tuple(dict.fromkeys(limits)),
        block_tokens=_block_of_prefixes(ready.capacity) if ready else 0,
        restores=bool(first) and all(capacity.restores for capacity in first),
        adapters=_one_of_each_name(adapters),
    )


def _one_of_each_name(holders: Mapping[ServedAdapter, int]) -> tuple[ServedAdapter, ...]:
    """Of several files under one name, those that most workers have. `holders`: how many have
    each."""
    by_name: dict[str, ServedAdapter] = {}
    for adapter in sorted(holders, key=lambda one: (holders[one], one.id, one.path)):
        by_name[name_of_adapter(adapter.id)] = adapter
    return tuple(by_name[name] for name in sorted(by_name))[:ADAPTERS_MAX]


def _block_of_prefixes(capacity: Capacity) -> int:
    return capacity.block_tokens if capacity.keeps_prefixes else 0


def _none_ready(states: dict[str, int]) -> str:
    """`states`: how many decode workers are in each state."""
    if not states:
        return "no decode worker is known"
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"no decode worker is ready: {counted}"
