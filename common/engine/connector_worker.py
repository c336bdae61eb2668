"""The connector's worker half: carries plans to the KV thread and its results back to vLLM.

Theory of operation: vLLM asserts that a request it is told about is known and, for sends, finished.
So an ended send is reported only once vLLM has listed the request as finished, an ended receive
once, in both sets if it failed (vLLM then computes the prompt itself). While blocks are pinned or
loading, vLLM steps every millisecond for news; a step that computes nothing waits here for a
handoff to end instead, a little longer, so that the polling costs a third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from common.engine.connector_meta import StepPlan, request_key
from common.kv.service import KvService

IDLE_WAIT_S = 0.003


class WorkerHalf:
    """Runs on the engine's thread."""

    def __init__(self, service: KvService, settle: Callable[[], None]) -> None:
        """`settle` returns when the KV of the forward pass so far is in memory."""
        self._service = service
        self._settle = settle
        self._offered: set[str] = set()
        self._sent: set[str] = set()
        self._finished: set[str] = set()
        self._fetching: set[str] = set()

    def preempted(self, plan: StepPlan) -> None:
        """Before blocks are overwritten: returns when none of theirs is being read."""
        for key in plan.withdrawn:
            self._service.withdraw(key)

    def load(self, plan: StepPlan) -> None:
        for fetch in plan.fetches:
            key = (fetch.ticket.request_id, fetch.ticket.attempt)
            if fetch.block_ids:
                self._fetching.add(request_key(key))
            self._service.fetch(fetch.ticket, fetch.first_block, fetch.block_ids)

    def computed(self, plan: StepPlan) -> None:
        """After the forward pass: the blocks of this step hold KV, once it has settled."""
        if plan.progress:
            self._settle()
        for progress in plan.progress:
            if progress.offer is not None:
                self._offered.add(request_key(progress.key))
                self._service.offer(progress.offer, progress.prompt_blocks)
            self._service.progress(progress.key, progress.block_ids, progress.computed)
        for key, reason in plan.releases:
            self._service.release(key, reason)

    def results(
        self, plan: StepPlan, finished: Iterable[str]
    ) -> tuple[set[str], set[str], set[str]]:
        """(finished_sending, finished_recving, failed_recving). Raises BatonError when the KV
        thread is dead: the engine must not go on without it."""
        if plan.idle and (self._offered or self._fetching):
            self._service.wait_end(IDLE_WAIT_S)
        self._finished |= self._offered.intersection(finished)
        received: set[str] = set()
        failed: set[str] = set()
        for end in self._service.drain():
            request_id = request_key((end.request_id, end.attempt))
            if end.side == "send" and request_id in self._offered:
                self._sent.add(request_id)
            elif end.side == "receive" and request_id in self._fetching:
                self._fetching.remove(request_id)
                received.add(request_id)
                if end.error:
                    failed.add(request_id)
        sent = self._sent & self._finished
        self._sent -= sent
        self._finished -= sent
        self._offered -= sent
        return sent, received, failed
