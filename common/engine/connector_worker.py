"""The connector's worker half: carries plans to the KV thread and its results back to vLLM.

Theory of operation: vLLM asserts that a request it is told about is known and, for sends, finished.
So an ended send is reported only once vLLM has listed the request as finished, an ended receive
once, in both sets if it failed (vLLM then computes the prompt itself). While blocks are pinned or
loading, vLLM steps every millisecond for news; a step that computes nothing waits here for a
handoff to end instead, a little longer, so that the polling costs a third. Inside a step, each
group of layers that is done is told to the KV thread, which copies and sends while the engine
computes the next; the last group is told by the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from common.engine.connector_meta import StepPlan, request_key
from common.kv.service import KvService

IDLE_WAIT_S = 0.003


class LayerClock:
    """Which layers of this step are done. `names`: all layers as they lie in memory."""

    def __init__(self, names: Sequence[str], group_layers: int) -> None:
        self._place = {name: at for at, name in enumerate(names)}
        self._group_layers = group_layers
        self._saved: set[int] = set()
        self._told = 0

    def restart(self) -> None:
        self._saved.clear()
        self._told = 0

    def saved(self, name: str) -> int:
        """How many leading layers are done, if this one completes a group that is not the last;
        else 0. A layer without KV of its own is none of ours."""
        if name in self._place:
            self._saved.add(self._place[name])
        done = self._told
        while done in self._saved:
            done += 1
        done -= done % self._group_layers
        if done <= self._told or done >= len(self._place):
            return 0
        self._told = done
        return done


class WorkerHalf:
    """Runs on the engine's thread."""

    def __init__(
        self, service: KvService, settle: Callable[[], None], layers: LayerClock | None
    ) -> None:
        """`settle` returns when the KV of the forward pass so far is in memory. `layers`: None
        where a layer's KV is not in memory when vLLM says so (on a device)."""
        self._service = service
        self._settle = settle
        self._layers = layers
        self._offered: set[str] = set()
        self._sent: set[str] = set()
        self._finished: set[str] = set()
        self._fetching: set[str] = set()

    def preempted(self, plan: StepPlan) -> None:
        """Before blocks are overwritten: returns when none of theirs is being read."""
        for key in plan.withdrawn:
            self._service.withdraw(key)

    def begin(self, plan: StepPlan) -> None:
        """Before the forward pass: D may ask at once for what this step computes."""
        if self._layers is not None:
            self._layers.restart()
        for progress in plan.progress:
            if progress.offer is not None:
                self._offered.add(request_key(progress.key))
                self._service.offer(progress.offer, progress.prompt_blocks)

    def layer_saved(self, plan: StepPlan, name: str) -> None:
        """In the forward pass; the KV of this layer is final for the blocks that the step fills."""
        if self._layers is None or not plan.progress:
            return
        done = self._layers.saved(name)
        if done:
            for progress in plan.progress:
                self._service.ahead(progress.key, progress.block_ids, progress.computed, done)

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
            ended = progress.computed >= progress.prompt_blocks
            self._service.progress(progress.key, progress.block_ids, progress.computed, ended=ended)
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
