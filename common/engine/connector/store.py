"""The scheduler half's part in the store: what fills it, and which prompts it serves.

Theory of operation: it follows the blocks of every request from step to step. A block is filled
when the plan of a step has computed its last token, and the engine has its hash, which with
asynchronous scheduling is a step later. Filled blocks wait their turn: as many are saved in a step
as the backlog allows, after the step's forward pass. The engine may free a block meanwhile, but
what it held stays until the block is allocated again. So every block that a step allocates is taken
off the list, or withdrawn if its copy may not have begun.

A prompt whose next blocks the engine lacks and the store has is claimed as an asynchronous load,
its last token excepted. Each of its blocks comes from memory or from the disk
(`common.kv.store.disk_plan`). A load that fails is not claimed again, and the engine computes the
prompt. Where the router named a source that has more of the prompt than the own store, its blocks
are pulled instead, by the hashes that this engine computed. A pull that fails is not claimed again
either, except once for as many
blocks as the source said that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from common.engine.connector.block_names import BlockNames
from common.engine.connector.checkpoint import Checkpoints
from common.engine.connector.loads_ahead import LoadsAhead, Pool
from common.engine.connector.metadata import StoreLoad, StorePlan, StorePull, request_key, source_of
from common.engine.connector.store_request import Filled, Place, StoreRequest
from common.kv.messages import PULL_BLOCKS_MAX
from common.kv.store.disk_plan import DiskStore
from common.kv.store.recency import owner_of
from common.kv.store.results import StoreResults
from common.kv.store.table import BlockCopy, BlockName, Medium, StoreCounts, StoreTable
from common.messages import KvSource

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

GROUP = 0
"""The one KV cache group."""


class StoreScheduler:
    """One per engine. Request ids are vLLM's ids."""

    def __init__(
        self,
        table: StoreTable,
        block_tokens: int,
        backlog_blocks: int,
        clock: Callable[[], float],
        disk: DiskStore | None = None,
        *,
        fingerprint: str = "",
    ) -> None:
        """`backlog_blocks`: how many may be in the process of being saved. `fingerprint`: of the
        sources that may be pulled from, and of the holders that get copies; empty: of none."""
        self._table = table
        self._disk = disk
        self._block_tokens = block_tokens
        self._backlog_blocks = max(1, backlog_blocks)
        self._clock = clock
        self._fingerprint = fingerprint
        self._checkpoints = Checkpoints(table, block_tokens, clock, fingerprint)
        self._requests: dict[str, StoreRequest] = {}
        #: Filled blocks that are not being saved, in the order in which they filled.
        self._filled: dict[int, Filled] = {}
        #: Slots that are being written, and out of which block.
        self._saving: dict[int, int] = {}
        #: What is read for each request.
        self._loading: dict[str, list[Place]] = {}
        #: The number of the first block that is pulled for each request.
        self._pulling: dict[str, int] = {}
        #: For pulls that have just failed, how many of their blocks the source has.
        self._held: dict[str, int] = {}
        #: None until the engine's blocks are known.
        self._ahead: LoadsAhead | None = None
        self._plan = StorePlan()
        #: The counts of both tiers in the last plan.
        self._reported = StoreCounts(), StoreCounts()

    def bind_pool(self, pool: Pool, block_bytes: int) -> None:
        """Out of which blocks are taken for what is loaded ahead. `block_bytes`: of one."""
        self._ahead = LoadsAhead(self._table, pool, block_bytes, self._clock)

    def new_request(self, request: Request) -> None:
        row = StoreRequest(
            request, owner_of(request.cache_salt), BlockNames(request, self._block_tokens)
        )
        self._requests[request.request_id] = row
        source = source_of(request.kv_transfer_params)
        if source is not None and self._fingerprint == source.fingerprint:
            row.source = source
        self._checkpoints.new_request(request)

    def matched_tokens(self, request: Request, computed: int) -> int:
        """As `SchedulerHalf.matched_tokens`."""
        row = self._requests.get(request.request_id)
        if row is None:
            return 0
        first, end = computed // self._block_tokens, (request.num_tokens - 1) // self._block_tokens
        names = self._names(row, first, end)
        row.found = [] if row.failed else self._find(names)
        row.wanted = 0
        if row.source is not None:
            row.wanted = min(row.source.tokens // self._block_tokens - first, len(names))
            row.wanted = min(row.wanted, PULL_BLOCKS_MAX)
        if row.wanted <= len(row.found):
            row.wanted = 0
        return max(row.wanted, len(row.found)) * self._block_tokens

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """The blocks of a load are overwritten before a step tells of them. Raises RuntimeError if
        vLLM gave blocks for it that other requests share."""
        row = self._requests.get(request.request_id)
        own = blocks.get_unhashed_block_ids_all_groups()[GROUP] if external_tokens else []
        self._overwritten(own)
        if row is None:
            return
        found, row.found = row.found, []
        wanted, row.wanted = row.wanted, 0
        if request.num_computed_tokens == 0:
            row.settled = None
        if not own:
            return
        given = blocks.get_block_ids()[GROUP]
        row.settled = len(given) - len(own)
        if wanted:
            self._pull(row, wanted, given, own)
        elif found:
            self._load(row, found, given, own)

    def load_part(self, request: Request, first: int, block_ids: Sequence[int]) -> int:
        """Of a handoff to these blocks, `first` being the number of the first one, memory serves as
        many leading ones as it has. Returns how many; their load is planned."""
        row = self._requests.get(request.request_id)
        if row is None:
            return 0
        names = self._names(row, first, first + len(block_ids))
        slots = self._table.take(names, self._clock())
        if slots:
            row.in_part = True
            copies = [BlockCopy(*copy) for copy in zip(slots, block_ids, names, strict=False)]
            self._loading[request.request_id] = [(Medium.RAM, slot) for slot in slots]
            self._plan.loads.append(StoreLoad(request.request_id, copies))
        return len(slots)

    def step(self, output: SchedulerOutput) -> StorePlan:
        """Returns the plan of this step and begins an empty one."""
        for request_id in output.preempted_req_ids or ():
            row = self._requests.get(request_id)
            if row is not None:
                row.block_ids, row.computed, row.settled = [], 0, None
        for new in output.scheduled_new_reqs:
            ids, computed = new.block_ids[GROUP], new.num_computed_tokens
            self._advance(output, new.req_id, ids, computed, fresh=True)
        cached = output.scheduled_cached_reqs
        for at, request_id in enumerate(cached.req_ids):
            new_ids, computed = cached.new_block_ids[at], cached.num_computed_tokens[at]
            ids, resumed = new_ids[GROUP] if new_ids else [], request_id in cached.resumed_req_ids
            self._advance(output, request_id, ids, computed, fresh=resumed)
        self._table.expire(self._clock())
        self._offer()
        self._load_ahead()
        self._save()
        plan, self._plan = self._plan, StorePlan()
        plan.counts = replace(self._table.counts)
        if self._disk is not None:
            plan.spills, plan.used, plan.dropped = self._disk.step()
            plan.disk_counts = replace(self._disk.counts)
        self._reported = plan.counts, plan.disk_counts
        if self._disk is not None:
            on_disk = self._disk.changes()
            plan.told = on_disk if self._fingerprint else {}
        return plan

    def pulls(self, request: Request) -> bool:
        """Whether blocks are being pulled for it."""
        return request.request_id in self._pulling

    def finished(self, request: Request) -> None:
        """What it filled is still saved, as long as the engine leaves it there."""
        row = self._requests.pop(request.request_id, None)
        if row is not None:
            self._collect(row)
            names = self._names(row, 0, row.computed // self._block_tokens)
            self._table.mark_used(names, self._clock())
            if self._disk is not None:
                self._disk.mark_used(names)
            filled = min(row.computed // self._block_tokens, len(row.block_ids))
            self._checkpoints.finished(request, filled, self._plan)

    def ended(self, results: StoreResults) -> None:
        """What the ranks report of their copies."""
        for slots, whole in ((results.written, True), (results.dropped, False)):
            for slot in slots:
                if self._table.end_write(slot, self._clock(), whole=whole):
                    del self._saving[slot]
        for slot in results.damaged:
            self._table.damaged(slot)
        if self._disk is not None:
            self._disk.ended(results)
        if self._ahead is not None:
            self._ahead.ended(results.loaded, results.failed)
        self._held.update(results.held)
        for request_id in self._requests.keys() & set(results.failed):
            self._requests[request_id].failed = True
        for key, holder in results.holders.items():
            row = self._requests.get(request_key(key))
            if row is not None:
                self._checkpoints.change(row.request, holder, self._plan)
            else:
                self._plan.ended_offers.append(key)

    def received(self, request_ids: Iterable[str], failed: Iterable[str]) -> None:
        """These loads have ended on all ranks; some of them have failed."""
        for request_id in failed:
            row = self._requests.get(request_id)
            if row is not None and request_id in self._loading:
                row.failed |= not row.in_part
            elif row is not None and request_id in self._pulling:
                held = self._held.get(request_id, 0)
                row.source = self._still_has(row, self._pulling[request_id], held)
        for request_id in request_ids:
            places = self._loading.pop(request_id, [])
            self._table.end_read(_slots(places, Medium.RAM), self._clock())
            if self._disk is not None:
                self._disk.end_read(_slots(places, Medium.DISK))
            self._pulling.pop(request_id, None)
            self._held.pop(request_id, None)

    def changes(self) -> dict[BlockName, bool]:
        """As `StoreTable.changes`; nothing where nobody may pull."""
        changed = self._table.changes()
        return changed if self._fingerprint else {}

    @property
    def pending(self) -> bool:
        """Whether steps are needed to save what has filled, to learn that it is saved, to report
        the counts of that, to tell what the disk has, and to load ahead."""
        disk, told = self._disk, bool(self._fingerprint)
        on_disk = disk is not None and (disk.pending or (told and disk.untold))
        disk_counts = self._disk.counts if self._disk is not None else StoreCounts()
        unreported = self._reported != (self._table.counts, disk_counts)
        offers = self._plan.ended_offers or self._checkpoints.leaving
        ahead = self._ahead is not None and self._ahead.pending
        return bool(self._filled or self._saving or on_disk or unreported or offers or ahead)

    def _find(self, names: Sequence[BlockName]) -> list[Place]:
        """Where the leading names can be read."""
        found: list[Place] = []
        while True:
            before = len(found)
            slots = self._table.find(names[len(found) :], self._clock())
            found.extend((Medium.RAM, slot) for slot in slots)
            if self._disk is not None and len(found) < len(names):
                slots = self._disk.find(names[len(found) :])
                found.extend((Medium.DISK, slot) for slot in slots)
            if before == len(found):
                return found

    def _names(self, row: StoreRequest, first: int, end: int) -> list[BlockName]:
        return [BlockName(GROUP, block_hash) for block_hash in row.request.block_hashes[first:end]]

    def _advance(
        self,
        output: SchedulerOutput,
        request_id: str,
        block_ids: Sequence[int],
        computed: int,
        *,
        fresh: bool,
    ) -> None:
        """As `SchedulerHalf._advance`."""
        before = computed // self._block_tokens
        self._overwritten(block_ids[before:] if fresh else block_ids)
        row = self._requests.get(request_id)
        if row is None:
            return
        if fresh:
            row.block_ids = []
        if row.settled is None:
            row.settled = before
        row.block_ids.extend(block_ids)
        drafts = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
        row.computed = computed + output.num_scheduled_tokens[request_id] - drafts
        self._collect(row)

    def _collect(self, row: StoreRequest) -> None:
        """Lists the blocks that have filled."""
        settled = row.settled or 0
        end = min(row.computed // self._block_tokens, len(row.block_ids))
        names = self._names(row, settled, end)
        ours = row.names.of(settled, settled + len(names)) if self._disk is not None else []
        for number, name in enumerate(names, settled):
            our = ours[number - settled] if ours else b""
            self._filled[row.block_ids[number]] = Filled(name, row.owner, our)
            row.settled = number + 1

    def _overwritten(self, block_ids: Sequence[int]) -> None:
        """The next step writes to these blocks."""
        saving = set(self._saving.values())
        for block_id in block_ids:
            self._table.counts.skipped += self._filled.pop(block_id, None) is not None
            if block_id in saving:
                self._plan.withdrawn.append(block_id)

    def _offer(self) -> None:
        """Plans what other holders get of running streams, and lists again what the store lacks."""
        for request_id in self._checkpoints.streams:
            row = self._requests[request_id]
            filled = min(row.computed // self._block_tokens, len(row.block_ids))
            first = self._checkpoints.offered(request_id)
            names = self._names(row, first, filled)
            for number in self._checkpoints.offer(row.request, filled, names, self._plan):
                again = Filled(names[number - first], row.owner)
                self._filled.setdefault(row.block_ids[number], again)
        if self._checkpoints.leaving:
            listed = {block.name for block in self._filled.values()}
            self._checkpoints.offer_left(listed, self._plan)

    def _load_ahead(self) -> None:
        load = self._ahead.begin() if self._ahead is not None else None
        if load is not None:
            self._overwritten([copy.block_id for copy in load.copies])
            self._plan.loads.append(load)

    def _save(self) -> None:
        """Plans to save what has filled, as far as the backlog and the table have room."""
        while self._filled and len(self._saving) < self._backlog_blocks:
            block_id, (name, owner, ours) = next(iter(self._filled.items()))
            with self._table.guard:
                lacking = name not in self._table
                slot = self._table.begin_write(name, owner) if lacking else None
            if lacking and slot is None:
                return
            if slot is not None:
                self._saving[slot] = block_id
                self._plan.saves.append(BlockCopy(slot, block_id, name))
                if self._disk is not None:
                    self._disk.saved(slot, name, ours)
            del self._filled[block_id]

    def _load(
        self, row: StoreRequest, found: list[Place], given: Sequence[int], own: Sequence[int]
    ) -> None:
        first, request_id = self._first_own(len(found), given, own), row.request.request_id
        names = self._names(row, first, len(given))
        copies = [
            BlockCopy(slot, block_id, name, medium)
            for (medium, slot), block_id, name in zip(found, own, names, strict=True)
        ]
        kept = self._table.begin_read(_slots(found, Medium.RAM))
        on_disk = _slots(found, Medium.DISK)
        on_disk = self._disk.begin_read(on_disk) if self._disk is not None else []
        self._loading[request_id] = [
            *((Medium.RAM, slot) for slot in kept),
            *((Medium.DISK, slot) for slot in on_disk),
        ]
        self._plan.loads.append(StoreLoad(request_id, copies))

    def _pull(
        self, row: StoreRequest, wanted: int, given: Sequence[int], own: Sequence[int]
    ) -> None:
        first, request_id = self._first_own(wanted, given, own), row.request.request_id
        assert row.source is not None
        hashes = b"".join(row.request.block_hashes[first : len(given)])
        self._pulling[request_id] = first
        self._plan.pulls.append(StorePull(request_id, row.source, hashes, list(own), row.shortened))

    def _first_own(self, count: int, given: Sequence[int], own: Sequence[int]) -> int:
        """The number of the first block of a load of so many. Raises RuntimeError if vLLM gave
        others for it."""
        first = len(given) - len(own)
        if len(own) != count or list(own) != list(given[first:]):
            raise RuntimeError("vLLM gave blocks for a load that other requests share")
        return first

    def _still_has(self, row: StoreRequest, first: int, held: int) -> KvSource | None:
        """The source after a pull from block `first` on has failed because it has only `held`
        blocks from there. None if it is not to be asked again."""
        if row.source is None or row.shortened or not held:
            return None
        row.shortened = True
        return msgspec.structs.replace(row.source, tokens=(first + held) * self._block_tokens)


def _slots(places: Iterable[Place], medium: Medium) -> list[int]:
    return [slot for of, slot in places if of is medium]
