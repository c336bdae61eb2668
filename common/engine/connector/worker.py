"""The connector's worker half: it passes plans to the KV thread and results back to vLLM.

Theory of operation: vLLM asserts that a reported request is known and, for sends, finished. An
ended send is therefore reported only after vLLM listed the request as finished. An ended receive is
reported once, in both sets if it failed, after which vLLM computes the prompt itself. While blocks
are pinned or loading, vLLM makes a step every millisecond to poll. A step that computes nothing
waits here a little longer for a handoff to end, so that polling costs a third. Inside a step, each
finished group of layers is reported to the KV thread, which copies and sends it while the engine
computes the next group; the last group is reported by the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from common.engine.connector.metadata import StepPlan, request_key
from common.kv.service import KvService

IDLE_WAIT_S = 0.003


class LayerProgress:
    """Which layers of this step are done. `names` are all layers in the order of memory."""

    def __init__(self, names: Sequence[str], group_layers: int) -> None:
        self._place = {name: at for at, name in enumerate(names)}
        self._group_layers = group_layers
        self._saved: set[int] = set()
        self._reported = 0

    def restart(self) -> None:
        """A step begins."""
        self._saved.clear()
        self._reported = 0

    def on_saved(self, name: str) -> int:
        """How many leading layers are done, if this one completes a group that is not the last;
        else 0. A layer without KV of its own is ignored."""
        if name in self._place:
            self._saved.add(self._place[name])
        done = self._reported
        while done in self._saved:
            done += 1
        done -= done % self._group_layers
        if done <= self._reported or done >= len(self._place):
            return 0
        self._reported = done
        return done


class WorkerHalf:
    """It runs on the engine's thread."""

    def __init__(
        self, service: KvService, settle: Callable[[], None], layers: LayerProgress | None
    ) -> None:
        """`settle` returns when the KV of the forward pass so far is in memory. `layers` is None on
        a device, where a layer's KV is not yet in memory when vLLM reports it as saved."""
        self._service = service
        self._settle = settle
        self._layers = layers
        self._offered: set[str] = set()
        self._sent: set[str] = set()
        self._finished: set[str] = set()
        self._fetching: set[str] = set()

    def preempted(self, plan: StepPlan) -> None:
        """Called before blocks are overwritten. Returns when no block of preempted requests is
        being read."""
        for key in plan.withdrawn:
            self._service.withdraw(key)

    def begin(self, plan: StepPlan) -> None:
        """Called before the forward pass. Offers the step's prompts, so that D can ask for them at
        once."""
        if self._layers is not None:
            self._layers.restart()
        for progress in plan.progress:
            if progress.offer is not None:
                self._offered.add(request_key(progress.key))
                self._service.offer(progress.offer, progress.prompt_blocks)

    def layer_saved(self, plan: StepPlan, name: str) -> None:
        """Called in the forward pass. The KV of this layer is final for the blocks that the step
        fills."""
        if self._layers is None or not plan.progress:
            return
        done = self._layers.on_saved(name)
        if done:
            for progress in plan.progress:
                self._service.layers_computed(
                    progress.key, progress.block_ids, progress.computed, done
                )

    def load(self, plan: StepPlan) -> None:
        """Begins the plan's handoffs on D."""
        for fetch in plan.fetches:
            key = (fetch.ticket.request_id, fetch.ticket.attempt)
            if fetch.block_ids:
                self._fetching.add(request_key(key))
            self._service.fetch(fetch.ticket, fetch.first_block, fetch.block_ids)

    def computed(self, plan: StepPlan) -> None:
        """Called after the forward pass. Once it has settled, the blocks of this step hold KV."""
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
        """Returns (finished_sending, finished_recving, failed_recving). Raises BatonError if the KV
        thread is dead, because the engine must not continue without it."""
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
