"""The connector's scheduler half: which tokens come from another worker, and which blocks must
stay.

Theory of operation: on D it claims all of a prompt but its last token as an asynchronous load,
once; the last token is computed here, for its logits. After a failed load vLLM asks again, and the
claim is not repeated, so that the prompt is computed here. On P it follows each prompt's blocks
from step to step and reports how many hold KV. At the end P's blocks stay (`delay_free`) until the
worker half reports that the handoff ended. All of this is plain bookkeeping, whose result is the
step's `StepPlan`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.blocks import blocks_for
from common.engine.connector.metadata import Fetch, KvTask, Progress, StepPlan, from_params

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


@dataclass(slots=True)
class _Sending:
    """A request on P."""

    task: KvTask
    prompt_tokens: int
    #: The prompt's blocks so far.
    block_ids: list[int] = field(default_factory=list)
    #: Whether a plan had its ticket.
    offered: bool = False


@dataclass(slots=True)
class _Receiving:
    """A request on D."""

    task: KvTask
    #: Whether its load was claimed or found unnecessary.
    decided: bool = False


class SchedulerHalf:
    """One per engine. Request ids are vLLM's ids."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._sending: dict[str, _Sending] = {}
        self._receiving: dict[str, _Receiving] = {}
        self._plan = StepPlan()

    def new_request(self, request: Request) -> None:
        task = from_params(request.kv_transfer_params)
        if task is None:
            return
        if task.side == "send":
            self._sending[request.request_id] = _Sending(task, request.num_prompt_tokens)
        else:
            self._receiving[request.request_id] = _Receiving(task)

    def matched_tokens(self, request: Request, computed: int) -> int:
        """Tokens after the `computed` ones (whole local blocks) that will be loaded. It has no side
        effects."""
        receiving = self._receiving.get(request.request_id)
        if receiving is None or receiving.decided:
            return 0
        prompt_tokens: int = request.num_prompt_tokens
        return max(0, prompt_tokens - 1 - computed)

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """Plans the load into these blocks. Raises RuntimeError if vLLM gave blocks that other
        requests share."""
        receiving = self._receiving.get(request.request_id)
        if receiving is None or receiving.decided:
            return
        receiving.decided = True
        ticket = receiving.task.ticket
        if external_tokens == 0:
            self._plan.fetches.append(Fetch(ticket, 0, []))
            return
        last = request.num_prompt_tokens - 1
        first_block = (last - external_tokens) // self._block_tokens
        end_block = blocks_for(last, self._block_tokens)
        wanted = blocks.get_block_ids()[0][first_block:end_block]
        own = set(blocks.get_unhashed_block_ids_all_groups()[0])
        if len(wanted) != end_block - first_block or not own.issuperset(wanted):
            raise RuntimeError("vLLM gave blocks for a load that other requests share")
        self._plan.fetches.append(Fetch(ticket, first_block, wanted))

    def step(self, output: SchedulerOutput) -> StepPlan:
        """Returns the plan of this step and begins an empty one."""
        for request_id in sorted(output.preempted_req_ids or ()):
            sending = self._sending.get(request_id)
            if sending is not None and sending.offered:
                sending.block_ids = []
                self._plan.withdrawn.append(sending.task.key)
        for new in output.scheduled_new_reqs:
            self._advance(output, new.req_id, new.block_ids[0], new.num_computed_tokens, fresh=True)
        cached = output.scheduled_cached_reqs
        for at, request_id in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[at]
            self._advance(
                output,
                request_id,
                blocks[0] if blocks else [],
                cached.num_computed_tokens[at],
                fresh=request_id in cached.resumed_req_ids,
            )
        plan, self._plan = self._plan, StepPlan()
        plan.idle = output.total_num_scheduled_tokens == 0
        return plan

    def finished(self, request: Request, *, aborted: bool) -> bool:
        """True if its blocks must stay until the worker half reports that sending ended."""
        receiving = self._receiving.pop(request.request_id, None)
        if receiving is not None and aborted and receiving.decided:
            self._plan.releases.append((receiving.task.key, "aborted in the engine"))
        sending = self._sending.pop(request.request_id, None)
        if sending is None or not sending.offered:
            return False
        if aborted:
            self._plan.releases.append((sending.task.key, "aborted in the engine"))
        return True

    @property
    def pending(self) -> bool:
        """Whether the next plan has work even if vLLM schedules nothing."""
        plan = self._plan
        return bool(plan.releases or plan.fetches or plan.withdrawn)

    def _advance(
        self,
        output: SchedulerOutput,
        request_id: str,
        block_ids: list[int],
        computed_tokens: int,
        *,
        fresh: bool,
    ) -> None:
        sending = self._sending.get(request_id)
        if sending is None:
            return
        prompt_blocks = blocks_for(sending.prompt_tokens, self._block_tokens)
        known = [] if fresh else sending.block_ids
        sending.block_ids = [*known, *block_ids][:prompt_blocks]
        tokens = computed_tokens + output.num_scheduled_tokens[request_id]
        whole = tokens >= sending.prompt_tokens
        self._plan.progress.append(
            Progress(
                key=sending.task.key,
                block_ids=sending.block_ids,
                computed=prompt_blocks if whole else tokens // self._block_tokens,
                offer=None if sending.offered else sending.task.ticket,
                prompt_blocks=prompt_blocks,
            )
        )
        sending.offered = True
