"""The disk tier below a store: written after saves, read for loads, and given up at an error."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from common.kv.checksum.definition import Bytes
from common.kv.handoff.counters import HandoffCounters
from common.kv.layout import Geometry, HostMemory
from common.kv.store import disk as module
from common.kv.store import side
from common.kv.store.arena import Arena
from common.kv.store.disk import DiskPlace
from common.kv.store.record import Record, Spill
from common.kv.store.results import StoreResults
from common.kv.store.segments import Segments
from common.kv.store.side import StoreSide
from common.kv.store.table import BlockCopy, BlockName, Medium, StoreCounts
from tests.rigs.arenas import all_results

BLOCKS, PAGE = 32, 512
GEOMETRY = Geometry(2, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
KEY = b"k" * 16
WAIT_S = 10.0


class Rig:
    """A store over a disk, on a thread of its own as in an engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, rate: float) -> None:
        base = np.random.default_rng(5).integers(0, 256, GEOMETRY.end, dtype=np.uint8)
        self.memory = HostMemory(base, GEOMETRY)
        self.arena = Arena(self.memory, BLOCKS)
        self.counters = HandoffCounters()
        self.ended = threading.Semaphore(0)
        place = DiskPlace(folder, KEY, BLOCKS, rate)
        self.side = StoreSide(self.arena, self.counters, loop, self.ended.release, place)

    def results(self) -> StoreResults:
        return all_results(self.side, self.ended)

    def put(self, *numbers: int) -> StoreResults:
        """The engine's blocks of these numbers go to the arena, and from there to the disk, in
        slots of the same numbers."""
        self.side.save([BlockCopy(at, at, name(at)) for at in numbers])
        self.results()
        self.side.spill([Spill(at, at, name(at)) for at in numbers], [])
        return self.results()

    def page(self, block: int) -> bytes:
        return self.memory.page(1, block).tobytes()


def name(number: int) -> BlockName:
    return BlockName(0, bytes([number]) * 32)


def on_disk(slot: int, block: int) -> BlockCopy:
    return BlockCopy(slot, block, name(slot), Medium.DISK)


class SkippingLoop(asyncio.SelectorEventLoop):
    """Its clock goes on by what is skipped, without a wait."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


@contextmanager
def running(
    folder: Path, rate: float = 1e12, loop: asyncio.AbstractEventLoop | None = None
) -> Iterator[Rig]:
    loop = loop or asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    rig = Rig(loop, folder, rate)
    try:
        yield rig
    finally:
        rig.side.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(tmp_path / "d0.0") as rig:
        yield rig


def test_blocks_go_to_the_disk_and_come_back_in_the_next_process(tmp_path: Path) -> None:
    with running(tmp_path / "d0.0") as first:
        before = [first.page(block) for block in (1, 2)]
        assert first.put(1, 2) == StoreResults(spilled=[1, 2])
        assert first.counters.store_disk_written == 2
    with running(tmp_path / "d0.0") as second:
        second.side.load("r", [on_disk(1, 8), on_disk(2, 9)])
        assert second.results() == StoreResults(loaded=["r"])
        assert [second.page(block) for block in (8, 9)] == before
        assert (second.counters.store_disk_read, second.counters.store_read) == (2, 0)


def test_what_is_dropped_is_not_found_by_the_next_process_even_at_the_end(tmp_path: Path) -> None:
    """Writes are slow here, so that what was ordered last waits."""
    with running(tmp_path / "d0.0", rate=2.0 * GEOMETRY.block_bytes) as first:
        first.put(1, 2)
        first.side.spill([], [1], [2])
    segments = Segments(tmp_path / "d0.0", KEY, GEOMETRY.block_bytes, BLOCKS)
    used = {at: record.used_at for at, record in segments.scan()}
    assert used[2] == 0.0
    assert used[1] > 1e9


def test_one_load_takes_from_memory_and_from_the_disk(rig: Rig) -> None:
    before = [rig.page(block) for block in range(20)]
    rig.put(*range(20))
    copies = [BlockCopy(at, 20 + at, name(at)) for at in range(4)]
    rig.side.load("r", [*copies, *(on_disk(at, 20 + at) for at in range(4, 12))])
    assert rig.results() == StoreResults(loaded=["r"])
    assert [rig.page(20 + at) for at in range(12)] == before[:12]


def test_more_blocks_than_buffers_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUFFERS_MAX", 2)
    with running(tmp_path / "d0.0") as rig:
        assert len(rig.put(*range(16)).spilled) == 16
        rig.side.load("a", [on_disk(at, 16 + at) for at in range(8)])
        rig.side.load("b", [on_disk(at, 16 + at) for at in range(8, 16)])
        assert sorted(rig.results().loaded) == ["a", "b"]
        assert [rig.page(at) for at in range(16)] == [rig.page(16 + at) for at in range(16)]


def test_a_damaged_block_fails_its_load_and_no_other(rig: Rig, tmp_path: Path) -> None:
    rig.put(1, 2, 3)
    (path,) = (tmp_path / "d0.0").glob("*.kv")
    file = os.open(path, os.O_RDWR)
    os.pwrite(file, bytes(8), 2 * 4096 + 999)
    os.close(file)
    rig.side.load("bad", [BlockCopy(1, 8, name(1)), on_disk(2, 9)])
    rig.side.load("good", [on_disk(1, 11), on_disk(3, 12)])
    results = rig.results()
    assert sorted(results.loaded) == ["bad", "good"]
    assert (results.failed, results.disk_damaged) == (["bad"], [2])
    assert rig.page(12) == rig.page(3)
    assert (rig.counters.store_disk_damaged, rig.counters.store_damaged) == (1, 0)


def test_nothing_is_copied_for_a_load_that_has_ended(rig: Rig, tmp_path: Path) -> None:
    """The engine may have given its blocks to another request."""
    rig.put(1, 2)
    (path,) = (tmp_path / "d0.0").glob("*.kv")
    file = os.open(path, os.O_RDWR)
    os.pwrite(file, bytes(4096), 4096)
    os.close(file)
    disk, before = rig.side._disk, rig.page(9)
    assert disk is not None
    buffers = len(disk._read_buffers)
    rig.side.load("bad", [on_disk(1, 8), on_disk(2, 9)])
    assert rig.results() == StoreResults(loaded=["bad"], failed=["bad"], disk_damaged=[1])
    rig.side.load("next", [on_disk(2, 10)])
    assert rig.results().loaded == ["next"]
    assert rig.page(9) == before
    assert len(disk._read_buffers) == buffers, "that of the second block, too, was given back"


def test_a_load_that_fails_takes_nothing_more_from_memory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(1, 2)
    before = rig.page(8)
    monkeypatch.setattr(module.Disk, "read", lambda disk, slot, answer: answer(None, None))
    rig.side.load("r", [BlockCopy(1, 8, name(1)), on_disk(2, 9)])
    assert rig.results() == StoreResults(loaded=["r"], failed=["r"])
    rig.side.load("s", [BlockCopy(1, 10, name(1))])
    assert rig.results() == StoreResults(loaded=["s"]), "what waits after it has its turn"
    assert rig.page(8) == before


def test_what_memory_has_dropped_meanwhile_is_not_written(rig: Rig) -> None:
    rig.side.save([BlockCopy(4, 4, name(4))])
    rig.results()
    rig.side.spill([Spill(4, 0, name(5)), Spill(6, 1, name(6))], [])
    assert rig.results() == StoreResults(unspilled=[0, 1])
    assert rig.counters.store_disk_written == 0
    rig.side.spill([Spill(4, slot, name(6)) for slot in range(2 * module.BUFFERS_MAX)], [])
    rig.results()
    rig.side.spill([Spill(4, 0, name(4))], [])
    assert rig.results() == StoreResults(spilled=[0]), "no buffer was lost"


def test_writes_keep_to_their_rate_and_reads_go_before_them(tmp_path: Path) -> None:
    """Ten blocks of writing take at least nine intervals of a tenth of a second; a block is read
    meanwhile."""
    with running(tmp_path / "d0.0", rate=GEOMETRY.block_bytes * 10) as rig:
        rig.put(0)
        began = time.monotonic()
        rig.side.save([BlockCopy(at, at, name(at)) for at in range(1, 11)])
        rig.results()
        rig.side.spill([Spill(at, at, name(at)) for at in range(1, 11)], [])
        rig.side.load("r", [on_disk(0, 20)])
        total = StoreResults()
        while "r" not in total.loaded:
            assert rig.ended.acquire(timeout=WAIT_S)
            total = total.joined(rig.side.drain())
        assert len(total.spilled) < 10
        rig.results()
        assert time.monotonic() - began >= 0.9


@pytest.mark.parametrize("when", ["open", "write", "read"])
def test_an_error_ends_the_tier_once_and_fails_what_it_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told: list[str] = []
    failed = StoreSide._on_disk_failed

    def telling(side: StoreSide, sentence: str) -> None:
        told.append(sentence)
        failed(side, sentence)

    monkeypatch.setattr(StoreSide, "_on_disk_failed", telling)
    if when == "open":
        monkeypatch.setattr(Segments, "open", full)
    with running(tmp_path / "d0.0") as rig:
        if when != "open":
            rig.put(1)
            monkeypatch.setattr(Segments, when, full)
        rig.side.save([BlockCopy(2, 2, name(2))])
        total = rig.results()
        rig.side.spill([Spill(2, 2, name(2))], [1])
        rig.side.load("r", [on_disk(1, 9)])
        total = total.joined(rig.results())
        rig.side.spill([Spill(2, 3, name(2))], [])
        total = total.joined(rig.results())
        rig.side.load("s", [BlockCopy(2, 10, name(2))])
        total = total.joined(rig.results())
        assert total.disk_off
        assert "r" in total.failed or when == "write"
        assert total.loaded == ["r", "s"]
        assert "s" not in total.failed, "memory goes on"
        assert rig.counters.store_disk_off == 1
    (sentence,) = told
    assert "No space left on device" in sentence
    assert "d0.0" in sentence


def test_a_disk_that_hangs_is_given_up_and_what_it_says_later_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side, "DISK_ANSWER_S", 0.3)
    go = threading.Event()
    read = Segments.read

    def hanging(segments: Segments, slot: int, out: Bytes) -> Record | None:
        assert go.wait(WAIT_S)
        return read(segments, slot, out)

    with running(tmp_path / "d0.0") as rig:
        rig.put(1, 2)
        before = rig.page(9)
        monkeypatch.setattr(Segments, "read", hanging)
        rig.side.load("r", [BlockCopy(1, 8, name(1)), on_disk(2, 9)])
        results = rig.results()
        assert (results.loaded, results.failed, results.disk_off) == (["r"], ["r"], True)
        assert rig.counters.store_disk_off == 1
        go.set()
        rig.side.load("s", [on_disk(1, 10)])
        assert rig.results().loaded == ["s"], "it is answered after the one that hung"
        assert rig.page(9) == before


def test_a_disk_that_is_slow_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four blocks take longer than one may."""
    read, loop = Segments.read, SkippingLoop()

    def slow(segments: Segments, slot: int, out: Bytes) -> Record | None:
        loop.skipped += 0.7 * module.DISK_ANSWER_S
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(WAIT_S)
        return read(segments, slot, out)

    with running(tmp_path / "d0.0", loop=loop) as rig:
        rig.put(1, 2, 3, 4)
        monkeypatch.setattr(Segments, "read", slow)
        rig.side.load("r", [on_disk(at, 8 + at) for at in (1, 2, 3, 4)])
        assert rig.results() == StoreResults(loaded=["r"])


def test_a_disk_that_hangs_is_given_up_though_it_is_asked_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side, "DISK_ANSWER_S", 0.3)
    monkeypatch.setattr(module.Disk, "read", lambda disk, slot, answer: None)
    with running(tmp_path / "d0.0") as rig:
        began = time.monotonic()
        for number in itertools.count():
            rig.side.load(str(number), [on_disk(1, 9)])
            if rig.ended.acquire(timeout=0.1) and rig.side.drain().disk_off:
                break
            assert time.monotonic() - began < WAIT_S


def test_a_folder_that_another_process_keeps_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCKED_WAIT_S", 0.3)
    other = Segments(tmp_path / "d0.0", KEY, GEOMETRY.block_bytes, BLOCKS)
    assert other.open()
    with running(tmp_path / "d0.0") as rig:
        rig.side.load("r", [on_disk(1, 9)])
        assert rig.results().failed == ["r"]
    other.close()


def test_a_folder_is_waited_for_until_the_process_before_has_ended(tmp_path: Path) -> None:
    other = Segments(tmp_path / "d0.0", KEY, GEOMETRY.block_bytes, BLOCKS)
    assert other.open()
    with running(tmp_path / "d0.0") as rig:
        rig.side.save([BlockCopy(1, 1, name(1))])
        rig.results()
        rig.side.spill([Spill(1, 1, name(1))], [])
        other.close()
        assert rig.results() == StoreResults(spilled=[1])


def test_what_the_table_counts_is_reported(rig: Rig) -> None:
    rig.side.note(StoreCounts(1, 2, 3, 4, 9, 10), StoreCounts(5, 6, 7, 8))
    assert rig.ended.acquire(timeout=WAIT_S), "the daemon is told of the new counts"
    counts = rig.counters
    assert (counts.store_held, counts.store_evicted) == (1, 2)
    assert (counts.store_expired, counts.store_skipped) == (3, 4)
    assert (counts.store_ahead, counts.store_pinned) == (9, 10)
    assert (counts.store_disk_held, counts.store_disk_evicted) == (5, 6)
    assert (counts.store_disk_expired, counts.store_disk_skipped) == (7, 8)
