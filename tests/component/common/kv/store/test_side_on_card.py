"""A store whose engine's KV is on a card that runs as late as it may: right bytes, and no block or
slot read or written before its time or after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import BatonError
from common.kv.device.kernels import PageCopy
from common.kv.device.memory import CopyQueues, DeviceMemory
from common.kv.device.pages import CardPages
from common.kv.handoff.counters import HandoffCounters
from common.kv.layout import Geometry, Mark
from common.kv.store.arena import Arena
from common.kv.store.disk import DiskPlace
from common.kv.store.record import Spill
from common.kv.store.results import StoreResults
from common.kv.store.side import RUNNING_MAX, StoreSide
from common.kv.store.table import BlockCopy, BlockName, Medium
from tests.component.common.kv.service_peer import wait_for
from tests.rigs.arenas import all_results
from tests.unit.common.kv.device.late_card import LateCard, LateMark, LateStream

LAYERS, BLOCKS, PAGE = 3, 40, 512
GEOMETRY = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
ODD = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * (PAGE + 8), PAGE + 8)
"""Pages that do not fit the kernel."""
WAIT_S = 30.0


class Rig:
    """A store on a thread of its own, and an engine that only has a stream."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, card: LateCard, geometry: Geometry, disk: Path | None
    ) -> None:
        base = np.random.default_rng(5).integers(0, 256, geometry.end, dtype=np.uint8)
        step = geometry.layer_stride, geometry.block_stride, 1
        self.pages = np.lib.stride_tricks.as_strided(base, (LAYERS, BLOCKS, PAGE), step)
        self.loop, self.card = loop, card
        self.memory = DeviceMemory(CopyQueues(card, torch.from_numpy(base)), CardPages(geometry))
        self.memory.reserve(geometry.block_bytes)
        self.arena = Arena(self.memory, BLOCKS)
        self.arena.prepare()
        self.ended = threading.Semaphore(0)
        place = DiskPlace(disk, b"k" * 16, BLOCKS, 1e12) if disk is not None else None
        made = self.arena, HandoffCounters(), loop, self.ended.release, place
        self.side = StoreSide(*made)

    def block(self, number: int) -> bytes:
        return self.pages[:, number].tobytes()

    def slot(self, number: int) -> bytes:
        one = GEOMETRY.block_bytes
        return self.arena.bytes[number * one : (number + 1) * one].tobytes()

    def write_later(self, block: int, value: int) -> LateMark:
        """Gives the engine's stream a write to this block. Returns a mark after it."""

        def write() -> None:
            self.pages[:, block] = value

        self.card.engine.put(write)
        return self.card.mark()

    def results(self) -> StoreResults:
        return all_results(self.side, self.ended)

    def saved(self, *copies: BlockCopy) -> None:
        self.side.save(copies)
        assert sorted(self.results().written) == [copy.slot for copy in copies]

    def running(self) -> int:
        return len(self.memory.queues.out._running) + len(self.memory.queues.into._running)


@contextmanager
def running(
    card: LateCard | None = None, geometry: Geometry = GEOMETRY, disk: Path | None = None
) -> Iterator[Rig]:
    loop, card = asyncio.new_event_loop(), card or LateCard()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        rig = Rig(loop, card, geometry, disk)
        yield rig
        card.let_go()
        rig.side.close()
        rig.memory.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


def copy(slot: int, block: int) -> BlockCopy:
    return BlockCopy(slot, block, BlockName(0, bytes([slot + 1]) * 32))


@pytest.mark.parametrize("geometry", [GEOMETRY, ODD])
def test_a_block_is_saved_as_the_engine_leaves_it_and_loaded_when_it_is_done_with_it(
    geometry: Geometry,
) -> None:
    with running(geometry=geometry) as rig:
        assert (rig.memory.device is None) == (geometry is ODD)
        old, seen = rig.block(9), list[bytes]()
        rig.side.save([copy(0, 3)], rig.write_later(3, 77))
        assert rig.results() == StoreResults(written=[0])
        assert rig.slot(0) == bytes([77]) * GEOMETRY.block_bytes
        rig.card.engine.put(lambda: seen.append(rig.block(9)))
        rig.side.load("r", [copy(0, 9)], rig.card.mark())
        assert rig.results() == StoreResults(loaded=["r"])
        assert seen == [old]
        assert rig.block(9) == rig.slot(0)


def test_what_was_saved_comes_back_and_nothing_else_is_touched() -> None:
    with running() as rig:
        blocks = [3, 30, 7, *range(10, 22)]
        before = [rig.block(number) for number in range(BLOCKS)]
        rig.saved(*(copy(slot, block) for slot, block in enumerate(blocks)))
        free = [0, 1, 39, 4, 5, 6, 8, *range(22, 30)]
        rig.side.load("r", [copy(slot, block) for slot, block in enumerate(free)])
        assert rig.results() == StoreResults(loaded=["r"])
        assert [rig.block(number) for number in free] == [before[number] for number in blocks]
        others = set(range(BLOCKS)) - set(free)
        assert all(rig.block(number) == before[number] for number in others)
        counters = rig.side._counters
        assert (counters.store_written, counters.store_read) == (len(blocks), len(blocks))


def test_a_block_that_the_engine_takes_back_is_overwritten_after_the_copy_that_began() -> None:
    with running() as rig:
        old = rig.block(3)
        rig.card.hold()
        rig.side.save([copy(0, 3)])
        wait_for(rig.running, WAIT_S)
        rig.side.withdraw([3])
        rig.write_later(3, 9).run()
        rig.card.let_go()
        assert rig.results() == StoreResults(written=[0]), "it has begun, and is whole"
        assert rig.slot(0) == old
        assert rig.block(3) == bytes([9]) * GEOMETRY.block_bytes


def test_few_copies_run_at_once_and_the_others_are_withdrawn_at_once() -> None:
    with running() as rig:
        rig.card.hold()
        rig.side.save([copy(at, at) for at in range(20)])
        wait_for(lambda: rig.running() == RUNNING_MAX, WAIT_S)
        rig.side.withdraw(range(20))
        assert rig.running() == RUNNING_MAX
        rig.card.let_go()
        results = rig.results()
        assert results.written == list(range(RUNNING_MAX))
        assert results.dropped == list(range(RUNNING_MAX, 20))


class Gate:
    """A card on whose streams the copy of this number waits for `go`. Nothing can be put on them
    meanwhile."""

    def __init__(self, number: int) -> None:
        self.go, gate = threading.Event(), self

        class GatedStream(LateStream):
            copies = 0

            def copy_pages(
                self,
                copy: PageCopy,
                places: torch.Tensor,
                after: Mark | None,
                host: torch.Tensor | None,
            ) -> LateMark:
                self.copies += not copy.gathers
                if self.copies == number and not copy.gathers:
                    self.put(partial(gate.go.wait, WAIT_S))
                return super().copy_pages(copy, places, after, host)

        class GatedCard(LateCard):
            def stream(self) -> LateStream:
                return GatedStream(self)

        self.card = GatedCard()


def test_a_damaged_load_ends_when_nothing_writes_to_its_blocks_any_more() -> None:
    """The engine computes those blocks then."""
    gate = Gate(2)
    with running(gate.card) as rig:
        rig.saved(*(copy(at, at) for at in range(12)))
        rig.arena.bytes[7] ^= 1
        rig.card.hold()
        rig.side.load("r", [copy(at, 20 + at) for at in range(12)])
        wait_for(lambda: rig.running() == RUNNING_MAX, WAIT_S)
        rig.card.let_go()
        told = StoreResults()
        while not told.damaged:
            assert rig.ended.acquire(timeout=WAIT_S)
            told = told.joined(rig.side.drain())
        assert (told.damaged, told.loaded, told.failed) == ([0], [], [])
        assert rig.running() > 0
        gate.go.set()
        told = told.joined(rig.results())
        assert (told.damaged, told.loaded, told.failed) == ([0], ["r"], ["r"])
        assert rig.running() == 0
        assert rig.side._counters.store_read < RUNNING_MAX, "nothing begins after damage"


def test_blocks_come_from_the_disk_to_the_card(tmp_path: Path) -> None:
    with running(disk=tmp_path / "d0.0") as rig:
        before = [rig.block(at) for at in range(6)]
        rig.saved(*(copy(at, at) for at in range(6)))
        rig.side.spill([Spill(at, at, copy(at, at).name) for at in range(6)], [])
        assert rig.results().spilled == list(range(6))
        seen, old = list[bytes](), rig.block(25)
        rig.card.engine.put(lambda: seen.append(rig.block(25)))
        wanted = [copy(at, 20 + at)._replace(medium=Medium.DISK) for at in range(6)]
        rig.side.load("r", wanted, rig.card.mark())
        assert rig.results() == StoreResults(loaded=["r"])
        assert [rig.block(20 + at) for at in range(6)] == before
        assert seen == [old]
        buffers = [size for size, writable in rig.card.locked if writable]
        assert buffers.count(GEOMETRY.block_bytes) == len(rig.side._disk._read_buffers)  # type: ignore[union-attr]


def test_a_buffer_of_the_disk_is_not_used_anew_while_the_card_reads_it(tmp_path: Path) -> None:
    with running(disk=tmp_path / "d0.0") as rig:
        rig.saved(*(copy(at, at) for at in range(2)))
        rig.side.spill([Spill(at, at, copy(at, at).name) for at in range(2)], [])
        rig.results()
        disk = rig.side._disk
        assert disk is not None
        buffers = len(disk._read_buffers)
        rig.card.hold()
        wanted = [copy(at, 20 + at)._replace(medium=Medium.DISK) for at in range(2)]
        rig.side.load("r", wanted)
        wait_for(lambda: rig.running() == 2, WAIT_S)
        assert len(disk._read_buffers) == buffers - 2
        rig.card.let_go()
        assert rig.results() == StoreResults(loaded=["r"])
        assert len(disk._read_buffers) == buffers


def test_memory_that_cannot_be_page_locked_names_the_setting() -> None:
    card = LateCard()
    card.locks = False
    with pytest.raises(BatonError, match=r"lower \[kv.store\] ram_mib"), running(card):
        pass
