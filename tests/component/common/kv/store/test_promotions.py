"""Blocks come from the disk back to memory: judged, read once, and never waited for without end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.kv.store.disk import DISK_ANSWER_S
from common.kv.store.promotions import Promotions
from common.kv.store.table import StoreTable
from tests.component.common.kv.store.test_disk import (
    BLOCKS,
    WAIT_S,
    Rig,
    SkippingLoop,
    name,
    running,
)

OWNER = b"somebody"


class Tiers:
    """A store whose disk has blocks 0 to 7, and whose memory has none of them."""

    def __init__(self, rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
        self.rig, self.loop = rig, loop
        self.memory = StoreTable(BLOCKS, 300.0, guard=threading.RLock())
        self.on_disk = StoreTable(BLOCKS, 300.0, guard=threading.RLock())
        rig.put(*range(8))
        self.on_disk.restore((at, name(at), self.now + 300.0, OWNER) for at in range(8))
        self.ended = threading.Semaphore(0)
        made = rig.side.promotions(self.memory, self.on_disk)
        assert made is not None
        self.promotions: Promotions = made

    @property
    def now(self) -> float:
        return self.loop.time()

    def call(self, wanted: Callable[[], object]) -> object:
        """On the KV thread."""

        async def run() -> object:
            return wanted()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_S)

    def begin(self, *numbers: int) -> object:
        names = [name(number) for number in numbers]
        return self.call(lambda: self.promotions.begin(names, self.ended.release))

    def come(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.ended.acquire(timeout=WAIT_S)
        self.memory.check_invariants()
        self.on_disk.check_invariants()

    def found(self, *numbers: int) -> list[int]:
        return self.memory.find([name(number) for number in numbers], self.now)

    def readers(self) -> int:
        slots = [*self.memory._slots, *self.on_disk._slots]
        return sum(slot.readers for slot in slots)

    def bytes_of(self, slot: int) -> bytes:
        one = self.rig.arena.block_bytes
        return self.rig.arena.bytes[slot * one : (slot + 1) * one].tobytes()


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    loop = SkippingLoop()
    with running(tmp_path / "s0.pool", loop=loop) as rig:
        yield Tiers(rig, loop)


def test_what_only_the_disk_has_comes_to_memory_as_it_was(tiers: Tiers) -> None:
    before = [tiers.bytes_of(at) for at in range(3)]
    tiers.rig.arena.bytes[:] = 0
    assert tiers.begin(0, 1, 2) is True
    tiers.come()
    slots = tiers.found(0, 1, 2)
    assert [tiers.bytes_of(slot) for slot in slots] == before
    assert {tiers.memory.owner_in(slot) for slot in slots} == {OWNER}
    assert all(tiers.rig.arena.holds(slot, name(at)) for at, slot in enumerate(slots))
    assert (tiers.rig.counters.store_disk_read, tiers.readers()) == (3, 0)
    assert tiers.begin(0, 1, 2) is False, "memory has all of it"
    assert tiers.readers() == 0


def test_what_memory_has_is_kept_meanwhile_and_then_let_go(tiers: Tiers) -> None:
    tiers.begin(0)
    tiers.come()
    (slot,) = tiers.found(0)
    kept: list[int] = []

    def begin() -> None:
        tiers.promotions.begin([name(0), name(1)], tiers.ended.release)
        kept.append(tiers.memory._slots[slot].readers)

    tiers.call(begin)
    tiers.come()
    assert (kept, tiers.readers()) == ([1], 0)
    assert len(tiers.found(0, 1)) == 2


def test_a_block_is_read_once_for_all_who_want_it(tiers: Tiers) -> None:
    def begin_twice() -> None:
        for wanted in ([name(0), name(1)], [name(1), name(2)]):
            assert tiers.promotions.begin(wanted, tiers.ended.release)

    tiers.call(begin_twice)
    tiers.come(2)
    assert len(tiers.found(0, 1, 2)) == 3
    assert tiers.rig.counters.store_disk_read == 3


def test_the_run_ends_at_what_no_tier_has(tiers: Tiers) -> None:
    assert tiers.begin(99, 0) is False
    assert tiers.begin(0, 99, 1) is True
    tiers.come()
    assert tiers.found(0) != []
    assert tiers.found(1) == []


def test_what_is_being_written_to_memory_is_not_read_from_the_disk(tiers: Tiers) -> None:
    tiers.memory.begin_write(name(0))
    assert tiers.begin(0, 1) is False
    assert tiers.begin(1, 0, 2) is True
    tiers.come()
    assert (len(tiers.found(1)), tiers.found(2)) == (1, [])


def test_no_more_comes_than_memory_has_slots_for(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    with running(tmp_path / "s0.pool", loop=loop) as rig:
        tiers = Tiers(rig, loop)
        tiers.memory._free = tiers.memory._free[-2:]
        assert tiers.begin(0, 1, 2, 3) is True
        assert tiers.ended.acquire(timeout=WAIT_S)
        assert len(tiers.found(0, 1, 2)) == 2
        assert tiers.readers() == 0


def test_a_damaged_block_is_counted_dropped_from_the_disk_and_not_found(tiers: Tiers) -> None:
    (path,) = (tmp for tmp in tiers.rig.side._disk._segments._folder.glob("*.kv"))  # type: ignore[union-attr]
    whole = bytearray(path.read_bytes())
    whole[len(whole) // BLOCKS * 1 + 600] ^= 1
    path.write_bytes(whole)
    tiers.rig.arena.bytes[:] = 0
    tiers.begin(0, 1, 2)
    tiers.come()
    assert len(tiers.found(0)) == 1
    assert tiers.found(1) == []
    assert name(1) not in tiers.memory
    assert name(1) not in tiers.on_disk
    counters = tiers.rig.counters
    assert (counters.store_disk_damaged, counters.store_disk_read) == (1, 2)


def test_a_disk_that_answers_nothing_is_given_up_and_nothing_is_kept(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    disk = tiers.rig.side._disk
    assert disk is not None
    read = disk._segments.read

    def hang(*args: object) -> object:
        hangs.set()
        assert goes_on.wait(WAIT_S)
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(disk._segments, "read", hang)
    tiers.begin(0, 1)
    assert hangs.wait(WAIT_S)
    loop = tiers.loop
    assert isinstance(loop, SkippingLoop)
    loop.skipped += DISK_ANSWER_S + 1
    tiers.call(lambda: None)
    tiers.come()
    assert tiers.rig.counters.store_disk_off == 1
    assert (tiers.readers(), tiers.found(0)) == (0, [])
    assert name(0) not in tiers.memory
    assert name(0) not in tiers.promotions, "a disk that failed has nothing"
    goes_on.set()
    assert tiers.begin(0) is False


def test_uses_are_told_once_and_only_of_what_the_disk_has(tiers: Tiers) -> None:
    tiers.promotions.note_used([name(0), name(99), name(1), name(0)])
    assert tiers.promotions.take_used() == [name(0), name(1)]
    assert tiers.promotions.take_used() == []


def test_what_is_read_ahead_lets_others_go_first(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on, order = threading.Event(), threading.Event(), list[int]()
    disk = tiers.rig.side._disk
    assert disk is not None
    read = disk._segments.read

    def slow(slot: int, buffer: object) -> object:
        order.append(slot)
        began.set()
        assert goes_on.wait(WAIT_S)
        return read(slot, buffer)  # type: ignore[arg-type]

    monkeypatch.setattr(disk._segments, "read", slow)

    def ahead() -> None:
        names = [name(at) for at in (0, 1, 2)]
        assert tiers.promotions.begin(names, tiers.ended.release, ahead=True)

    tiers.call(ahead)
    assert began.wait(WAIT_S)
    tiers.begin(5, 6)
    goes_on.set()
    tiers.come(2)
    assert order == [0, 5, 6, 1, 2]
    assert tiers.rig.counters.store_disk_bytes_per_s > 0


def test_a_disk_that_answers_others_is_not_given_up(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    disk = tiers.rig.side._disk
    assert disk is not None
    read = disk._segments.read

    def hang(*args: object) -> object:
        hangs.set()
        assert goes_on.wait(WAIT_S)
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(disk._segments, "read", hang)
    tiers.begin(0)
    assert hangs.wait(WAIT_S)
    loop = tiers.loop
    assert isinstance(loop, SkippingLoop)
    loop.skipped += DISK_ANSWER_S + 1
    disk.heard = loop.time()
    tiers.call(lambda: None)
    assert tiers.rig.counters.store_disk_off == 0
    goes_on.set()
    tiers.come()
    assert len(tiers.found(0)) == 1
