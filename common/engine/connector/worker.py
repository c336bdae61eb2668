"""The connector's worker half: it passes plans to the KV thread and results back to vLLM.

Theory of operation: vLLM asserts that a reported request is known and, for sends, finished. An
ended send is therefore reported only after vLLM listed the request as finished. An ended receive is
reported once, in both sets if it failed, after which vLLM computes the prompt itself. One whose
beginning comes out of the store is reported when both have ended, for both write to its blocks.
While blocks are pinned or loading, vLLM makes a step every millisecond to poll. A step that
computes nothing waits here a little longer for a handoff to end, so that polling costs a third.
Inside a step, each finished group of layers is reported to the KV thread, which copies and sends it
while the engine computes the next group; the last group is reported by the end of the step. On a
card the engine's work is only begun when it is reported, so each report names a mark after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from common.engine.connector.metadata import AHEAD, StepPlan, StorePlan, attempt_key, request_key
from common.identity import pull_key
from common.kv.layout import Mark
from common.kv.service import KvService
from common.kv.store.results import StoreResults
from common.kv.store.side import StoreSide

IDLE_WAIT_S = 0.003


class LayerProgress:
    """Which pages of a block hold KV in this step. `layers` are those of each page, in the order of
    memory: a page is done when all of them are."""

    def __init__(self, layers: Sequence[set[str]], group_layers: int) -> None:
        self._page = {name: at for at, names in enumerate(layers) for name in names}
        self._all = [len(names) for names in layers]
        self._group_layers = group_layers
        self._missing = list(self._all)
        self._done = 0
        self._reported = 0

    def restart(self) -> None:
        """A step begins."""
        self._missing[:] = self._all
        self._done = self._reported = 0

    def on_saved(self, name: str) -> int:
        """How many leading pages are done, if this layer completes a group that is not the last;
        else 0. A layer without KV of its own is ignored."""
        page = self._page.get(name)
        if page is None:
            return 0
        self._missing[page] -= 1
        while self._done < len(self._missing) and self._missing[self._done] <= 0:
            self._done += 1
        done = self._done - self._done % self._group_layers
        if done <= self._reported or done >= len(self._missing):
            return 0
        self._reported = done
        return done


@dataclass(slots=True)
class _Parts:
    """A load of which the store has the beginning, and a handoff brings the rest."""

    open: int = 2
    failed: bool = False


class WorkerHalf:
    """It runs on the engine's thread."""

    def __init__(
        self, service: KvService, mark: Callable[[], Mark | None], layers: LayerProgress | None
    ) -> None:
        """`mark` marks what the engine's thread has given to its card so far; None in host memory,
        where it is done. `layers`: None if KV leaves when all layers are computed."""
        self._service = service
        self._mark = mark
        self._layers = layers
        self._offered: set[str] = set()
        self._sent: set[str] = set()
        self._finished: set[str] = set()
        self._fetching: set[str] = set()
        #: By what the KV thread calls them, vLLM's ids of the requests that pull.
        self._pulling: dict[str, str] = {}
        #: Loads of two parts, of the store and of a handoff, that have not both ended.
        self._in_parts: dict[str, _Parts] = {}
        self._store_results = StoreResults()

    def preempted(self, plan: StepPlan) -> None:
        """Called before blocks are overwritten. Returns when no block of preempted requests is
        being read, and none that the step overwrites is being saved."""
        store = self._service.store
        if store is not None and plan.store is not None and plan.store.withdrawn:
            store.withdraw(plan.store.withdrawn)
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
                self._service.offer(progress.offer, progress.handoff_blocks)

    def layer_saved(self, plan: StepPlan, name: str) -> None:
        """Called in the forward pass. The KV of this layer is final for the blocks that the step
        fills."""
        if self._layers is None or not plan.progress:
            return
        done = self._layers.on_saved(name)
        if done:
            after = self._mark()
            for progress in plan.progress:
                ids = progress.block_ids
                self._service.layers_computed(progress.key, ids, len(ids), done, after)

    def load(self, plan: StepPlan) -> None:
        """Begins the plan's handoffs on D, and its loads from the store."""
        store, loading = self._service.store, set()
        stored = plan.store is not None and (plan.store.loads or plan.store.pulls)
        after = self._mark() if plan.fetches or stored else None
        if store is not None and plan.store is not None:
            for load in plan.store.loads:
                loading.add(load.request_id)
                store.load(load.request_id, load.copies, after)
            for pull in plan.store.pulls:
                key = attempt_key(pull.request_id)
                self._pulling[request_key(pull_key(key, again=pull.again))] = pull.request_id
                pulled = pull.source, pull.hashes, pull.block_ids
                self._service.pull(key, *pulled, again=pull.again, after=after)
        for fetch in plan.fetches:
            key = (fetch.ticket.request_id, fetch.ticket.attempt)
            if fetch.block_ids:
                self._fetching.add(request_key(key))
            if request_key(key) in loading:
                self._in_parts[request_key(key)] = _Parts()
            self._service.fetch(fetch.ticket, fetch.first_block, fetch.block_ids, after)

    def computed(self, plan: StepPlan) -> None:
        """Called after the forward pass, which on a card may only have begun. Once it is over, the
        blocks of this step hold KV."""
        store = self._service.store
        saves = plan.store is not None and plan.store.saves
        after = self._mark() if plan.progress or plan.kept or saves else None
        if store is not None and plan.store is not None:
            self._store(store, plan.store, after)
        for progress in plan.progress:
            blocks = progress.block_ids
            ended = len(blocks) >= progress.handoff_blocks
            self._service.progress(progress.key, blocks, len(blocks), ended=ended, after=after)
        for key, reason in plan.releases:
            self._service.release(key, reason)
        for key, block_ids in plan.kept:
            if block_ids:
                self._offered.add(request_key(key))
            self._service.keep(key, block_ids, after)

    def _store(self, store: StoreSide, plan: StorePlan, after: Mark | None) -> None:
        store.note(plan.counts, plan.disk_counts)
        if plan.saves:
            store.save(plan.saves, after)
        if plan.spills or plan.used or plan.dropped:
            store.spill(plan.spills, plan.used, plan.dropped)
        if plan.told:
            self._service.tell_disk(plan.told)
        for made in plan.offers:
            offered = made.hashes, made.names, made.filled, made.owner
            self._service.offer_copies(made.key, made.holder, *offered)
        for key in plan.ended_offers:
            self._service.end_copies(key)

    def store_results(self) -> StoreResults:
        """What the store of this rank has done by the last call of `results`."""
        return self._store_results

    def results(
        self, plan: StepPlan, finished: Iterable[str]
    ) -> tuple[set[str], set[str], set[str]]:
        """Returns (finished_sending, finished_recving, failed_recving). Raises BatonError if the KV
        thread is dead, because the engine must not continue without it."""
        store = self._service.store
        stores = store is not None and store.busy
        if plan.idle and (self._offered or self._fetching or self._pulling or stores):
            self._service.wait_end(IDLE_WAIT_S)
        self._finished |= self._offered.intersection(finished)
        self._store_results = store.drain() if store is not None else StoreResults()
        below = self._service.promotions if store is not None else None
        if below is not None:
            self._store_results.used = below.take_used()
        received = [loaded for loaded in self._store_results.loaded if loaded != AHEAD]
        failed = set(self._store_results.failed)
        for end in self._service.drain():
            request_id = request_key((end.request_id, end.attempt))
            if end.side == "send" and request_id in self._offered:
                self._sent.add(request_id)
            elif end.side == "receive" and request_id in self._fetching:
                self._fetching.remove(request_id)
                received.append(request_id)
                if end.error:
                    failed.add(request_id)
            elif end.side == "receive" and request_id in self._pulling:
                pulled = self._pulling.pop(request_id)
                received.append(pulled)
                if end.error:
                    failed.add(pulled)
                    self._store_results.held[pulled] = end.held
        sent = self._sent & self._finished
        self._sent -= sent
        self._finished -= sent
        self._offered -= sent
        return sent, *self._whole(received, failed)

    def _whole(self, ended: list[str], failed: set[str]) -> tuple[set[str], set[str]]:
        """Those of which every part has ended now, and those of them of which one has failed."""
        whole = set(ended)
        for request_id in ended:
            parts = self._in_parts.get(request_id)
            if parts is not None:
                parts.open -= 1
                parts.failed |= request_id in failed
        for request_id in whole & self._in_parts.keys():
            parts = self._in_parts[request_id]
            if parts.open:
                whole.remove(request_id)
            else:
                del self._in_parts[request_id]
                failed |= {request_id} if parts.failed else set()
        return whole, failed & whole
