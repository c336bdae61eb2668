"""The connector's scheduler half: which tokens come from another worker, and which blocks must
stay.

Theory of operation: on D it claims all of a prompt but its last token as an asynchronous load,
once; the last token is computed here, for its logits. Of a stream that ran elsewhere before, the
store may have leading blocks, which it loads, and the ticket brings the others. After a failed load
vLLM asks again, and the claim is not repeated, so that the prompt is computed here. On P it follows
each prompt's blocks, in all KV cache groups, from step to step and reports those that hold KV, in
handover order. At the end P's blocks stay (`delay_free`) until the worker half reports that the
handoff ended. So do those of a stream that is aborted on D: the KV thread knows whether it moves to
another D or is over, and in the latter case the next step frees them. All of this is plain
bookkeeping, whose result is the step's `StepPlan`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.blocks import HandoverOrder, KvGroup, streams_can_move
from common.engine.connector.metadata import (
    Fetch,
    KvTask,
    Progress,
    StepPlan,
    attempt_key,
    from_params,
)
from common.engine.connector.store_events import store_events

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from common.engine.connector.store import StoreScheduler
    from common.kv.store.results import StoreResults


@dataclass(slots=True)
class _Sending:
    """A request on P."""

    task: KvTask
    order: HandoverOrder
    #: The blocks of the request so far, for each KV cache group.
    allocated: list[list[int]]
    #: Those that hold KV, in handover order; never changed in place, because plans share it.
    computed: list[int] = field(default_factory=list)
    #: Whether a plan had its ticket.
    offered: bool = False


@dataclass(slots=True)
class _Receiving:
    """A request on D."""

    task: KvTask
    order: HandoverOrder
    #: Whether its load was claimed or found unnecessary.
    decided: bool = False


class SchedulerHalf:
    """One per engine. Request ids are vLLM's ids."""

    def __init__(self, groups: Sequence[KvGroup], store: StoreScheduler | None = None) -> None:
        self._groups = groups
        self._store = store
        self._sending: dict[str, _Sending] = {}
        self._receiving: dict[str, _Receiving] = {}
        self._plan = StepPlan()

    def new_request(self, request: Request) -> None:
        if self._store is not None:
            self._store.new_request(request)
        task = from_params(request.kv_transfer_params)
        if task is None:
            return
        order = HandoverOrder(self._groups, task.tokens, canonical=task.ticket.canonical)
        if task.side == "send":
            self._sending[request.request_id] = _Sending(task, order, [[] for _ in self._groups])
        else:
            self._receiving[request.request_id] = _Receiving(task, order)

    def matched_tokens(self, request: Request, computed: int) -> int:
        """Tokens after the `computed` ones (whole local blocks) that will be loaded; none where all
        blocks that the next token needs are there. It has no side effects."""
        receiving = self._receiving.get(request.request_id)
        if receiving is None or receiving.decided:
            return self._store.matched_tokens(request, computed) if self._store is not None else 0
        lacking = bisect.bisect_right(receiving.order.ends, computed) < len(receiving.order)
        return receiving.task.tokens - computed if lacking else 0

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """Plans the load into these blocks. Raises RuntimeError if vLLM gave blocks that other
        requests share."""
        if self._store is not None:
            self._store.allocated(request, blocks, external_tokens)
        receiving = self._receiving.get(request.request_id)
        if receiving is None or receiving.decided:
            return
        receiving.decided = True
        ticket = receiving.task.ticket
        if external_tokens == 0:
            self._plan.fetches.append(Fetch(ticket, 0, []))
            return
        order = receiving.order
        first = bisect.bisect_right(order.ends, receiving.task.tokens - external_tokens)
        given = blocks.get_block_ids()
        own = [set(ids) for ids in blocks.get_unhashed_block_ids_all_groups()]
        wanted = []
        for group, number in order.places[first:]:
            ids, at = given[group], order.engine_number(number)
            if at >= len(ids) or ids[at] not in own[group]:
                raise RuntimeError("vLLM gave blocks for a load that other requests share")
            wanted.append(order.block_id(ids[at], number))
        stored = 0
        if self._store is not None and receiving.task.goes_on and not ticket.canonical:
            stored = self._store.load_part(request, first, wanted[:-1])
        self._plan.fetches.append(Fetch(ticket, first + stored, wanted[stored:]))

    def step(self, output: SchedulerOutput) -> StepPlan:
        """Returns the plan of this step and begins an empty one."""
        for request_id in sorted(output.preempted_req_ids or ()):
            sending = self._sending.get(request_id)
            if sending is not None and sending.offered:
                sending.computed = []
                self._plan.withdrawn.append(sending.task.key)
        for new in output.scheduled_new_reqs:
            self._advance(output, new.req_id, new.block_ids, new.num_computed_tokens, fresh=True)
        cached = output.scheduled_cached_reqs
        for at, request_id in enumerate(cached.req_ids):
            self._advance(
                output,
                request_id,
                cached.new_block_ids[at] or [[] for _ in self._groups],
                cached.num_computed_tokens[at],
                fresh=request_id in cached.resumed_req_ids,
            )
        plan, self._plan = self._plan, StepPlan()
        plan.idle = output.total_num_scheduled_tokens == 0
        plan.store = self._store.step(output) if self._store is not None else None
        return plan

    def finished(self, request: Request, block_ids: Sequence[list[int]], *, aborted: bool) -> bool:
        """True if its blocks must stay until the worker half reports that sending ended.
        `block_ids`: its blocks for each group."""
        if self._store is not None:
            self._store.finished(request)
            if self._store.pulls(request):
                key = attempt_key(request.request_id)
                self._plan.releases.append((key, "aborted in the engine"))
        receiving = self._receiving.pop(request.request_id, None)
        sending = self._sending.pop(request.request_id, None)
        if sending is None:
            return aborted and self._left(request, receiving, block_ids)
        if not sending.offered:
            return False
        if aborted:
            self._plan.releases.append((sending.task.key, "aborted in the engine"))
        return True

    def _left(
        self, request: Request, receiving: _Receiving | None, block_ids: Sequence[list[int]]
    ) -> bool:
        """A stream of D was aborted."""
        kept = self._complete_blocks(request, block_ids)
        if receiving is not None and receiving.decided and not kept:
            self._plan.releases.append((receiving.task.key, "aborted in the engine"))
        self._plan.kept.append((attempt_key(request.request_id), kept))
        return bool(kept)

    def _complete_blocks(self, request: Request, block_ids: Sequence[list[int]]) -> list[int]:
        """The blocks with the KV of all tokens but the last; none where some of it is not there, or
        where streams cannot move."""
        tokens = request.num_tokens - 1
        streams = request.num_output_tokens > 0 and request.num_computed_tokens >= tokens
        if not streams or not streams_can_move(self._groups):
            return []
        order = HandoverOrder(self._groups, tokens)
        return [block_ids[group][number] for group, number in order.places]

    def copies_ended(
        self, results: StoreResults, received: Iterable[str], failed: Iterable[str]
    ) -> None:
        """What the worker half reports: of the store, and of the loads of both kinds that have
        ended, of which some have failed."""
        if self._store is not None:
            self._store.ended(results)
            self._store.received(received, failed)

    def store_events(self) -> Iterable[KVCacheEvent]:
        """What the store came to hold, or let go, since the last call."""
        return store_events(self._store.changes()) if self._store is not None else ()

    @property
    def pending(self) -> bool:
        """Whether the next plan has work even if vLLM schedules nothing."""
        plan, store = self._plan, self._store
        fills_store = store is not None and store.pending
        return bool(plan.releases or plan.fetches or plan.withdrawn or plan.kept or fills_store)

    def _advance(
        self,
        output: SchedulerOutput,
        request_id: str,
        block_ids: Sequence[list[int]],
        computed_tokens: int,
        *,
        fresh: bool,
    ) -> None:
        """`block_ids`: new blocks of the request for each group, all of them if it is `fresh`."""
        sending = self._sending.get(request_id)
        if sending is None:
            return
        if fresh:
            sending.allocated, sending.computed = [[] for _ in self._groups], []
        for known, new in zip(sending.allocated, block_ids, strict=True):
            known.extend(new)
        order, done = sending.order, len(sending.computed)
        tokens = computed_tokens + output.num_scheduled_tokens[request_id]
        now = bisect.bisect_right(order.ends, tokens)
        blocks = [
            order.block_id(sending.allocated[group][order.engine_number(number)], number)
            for group, number in order.places[done:now]
        ]
        sending.computed = [*sending.computed, *blocks]
        self._plan.progress.append(
            Progress(
                key=sending.task.key,
                block_ids=sending.computed,
                handoff_blocks=len(order),
                offer=None if sending.offered else sending.task.ticket,
            )
        )
        sending.offered = True
