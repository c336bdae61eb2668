"""Copies on the KV thread: withdrawn in time, loads first, damage told, nothing lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from common.kv.handoff.counters import HandoffCounters
from common.kv.layout import Geometry, HostMemory, Mark
from common.kv.store.arena import Arena
from common.kv.store.results import StoreResults
from common.kv.store.side import StoreSide
from common.kv.store.table import BlockCopy, BlockName
from tests.rigs.arenas import all_results

BLOCKS, PAGE = 16, 512
GEOMETRY = Geometry(2, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
WAIT_S = 10.0


class HeldArena(Arena):
    """Each copy waits until the test lets it go; the order is noted."""

    def __init__(self, memory: HostMemory) -> None:
        super().__init__(memory, BLOCKS)
        self.copies: list[tuple[str, int]] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def write(self, copy: BlockCopy, after: Mark | None, done: Callable[[], None]) -> None:
        self._hold("write", copy)
        super().write(copy, after, done)

    def read(self, copy: BlockCopy, after: Mark | None, done: Callable[[bool], None]) -> None:
        self._hold("read", copy)
        super().read(copy, after, done)

    def _hold(self, what: str, copy: BlockCopy) -> None:
        self.copies.append((what, copy.slot))
        self.begun.release()
        assert self.go.acquire(timeout=WAIT_S)


class Rig:
    """A store on a thread of its own, as in an engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        base = np.random.default_rng(5).integers(0, 256, GEOMETRY.end, dtype=np.uint8)
        self.memory = HostMemory(base, GEOMETRY)
        self.arena = HeldArena(self.memory)
        self.counters = HandoffCounters()
        self.ended = threading.Semaphore(0)
        self.side = StoreSide(self.arena, self.counters, loop, self.ended.release)

    def let(self, copies: int) -> None:
        self.arena.go.release(copies)

    def results(self) -> StoreResults:
        return all_results(self.side, self.ended)


@contextmanager
def running() -> Iterator[Rig]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Rig(loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running() as rig:
        yield rig


def copy(slot: int, block: int, number: int | None = None) -> BlockCopy:
    return BlockCopy(slot, block, BlockName(0, bytes([slot if number is None else number]) * 32))


class TellingCondition(threading.Condition):
    """Tells when somebody begins to wait."""

    def __init__(self, on_wait: Callable[[], None]) -> None:
        super().__init__()
        self._on_wait = on_wait

    def wait(self, timeout: float | None = None) -> bool:
        self._on_wait()
        assert super().wait(timeout or WAIT_S), "nobody told it"
        return True


def test_what_was_saved_is_loaded(rig: Rig) -> None:
    before = [rig.memory.page(1, block).tobytes() for block in (3, 4)]
    rig.let(4)
    rig.side.save([copy(0, 3), copy(1, 4)])
    assert rig.results() == StoreResults(written=[0, 1])
    rig.side.load("r", [copy(0, 8), copy(1, 9)])
    assert rig.results() == StoreResults(loaded=["r"])
    assert [rig.memory.page(1, block).tobytes() for block in (8, 9)] == before
    assert (rig.counters.store_written, rig.counters.store_read) == (2, 2)


def test_a_save_that_has_not_begun_is_withdrawn_at_once(rig: Rig) -> None:
    rig.side.save([copy(0, 3), copy(1, 4), copy(2, 5)])
    assert rig.arena.begun.acquire(timeout=WAIT_S)
    rig.side.withdraw([4, 7])
    rig.let(2)
    results = rig.results()
    assert (results.written, results.dropped) == ([0, 2], [1])
    assert ("write", 1) not in rig.arena.copies


def test_a_save_in_progress_is_waited_for(rig: Rig) -> None:
    """The engine overwrites the block as soon as `withdraw` returns, after one copy at most."""
    rig.side._guard = TellingCondition(lambda: rig.let(1))
    before = rig.memory.page(0, 3).tobytes()
    rig.side.save([copy(0, 3), copy(1, 4)])
    assert rig.arena.begun.acquire(timeout=WAIT_S)
    rig.side.withdraw([3])
    rig.memory.page(0, 3)[:] = 0
    rig.let(3)
    assert rig.results().written == [0, 1]
    rig.side.load("r", [copy(0, 9)])
    assert rig.results().failed == []
    assert rig.memory.page(0, 9).tobytes() == before


def test_a_withdrawn_block_may_be_saved_again(rig: Rig) -> None:
    rig.side.save([copy(0, 3), copy(1, 4)])
    assert rig.arena.begun.acquire(timeout=WAIT_S)
    rig.side.withdraw([4])
    rig.side.save([copy(2, 4)])
    rig.let(2)
    results = rig.results()
    assert (results.written, results.dropped) == ([0, 2], [1])


def test_a_load_goes_before_saves(rig: Rig) -> None:
    rig.let(1)
    rig.side.save([copy(0, 3)])
    rig.results()
    rig.side.save([copy(1, 4), copy(2, 5)])
    assert rig.arena.begun.acquire(timeout=WAIT_S)
    assert rig.arena.begun.acquire(timeout=WAIT_S)
    rig.side.load("r", [copy(0, 9)])
    rig.let(2)
    assert rig.ended.acquire(timeout=WAIT_S), "its end is told while saves go on"
    assert rig.side.drain().loaded == ["r"]
    rig.let(1)
    rig.results()
    assert rig.arena.copies == [("write", 0), ("write", 1), ("read", 0), ("write", 2)]


def test_a_damaged_load_ends_and_the_next_one_goes_on(rig: Rig) -> None:
    rig.let(9)
    rig.side.save([copy(0, 3), copy(1, 4), copy(2, 5)])
    rig.results()
    rig.arena.bytes[GEOMETRY.block_bytes + 7] ^= 1
    rig.side.load("bad", [copy(0, 8), copy(1, 9), copy(2, 10)])
    rig.side.load("good", [copy(0, 11), copy(2, 12)])
    results = rig.results()
    assert (results.damaged, results.failed) == ([1], ["bad"])
    assert results.loaded == ["bad", "good"]
    assert rig.arena.copies.count(("read", 2)) == 1, "nothing is copied after damage"
    assert rig.counters.store_damaged == 1
