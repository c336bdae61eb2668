"""What is told of the disk below a store, and in which order it is written. What prompts get from
it is in `tests/unit/common/engine/connector/test_store_disk.py`."""

from __future__ import annotations

import pytest

from common.clock import ManualClock
from common.kv.store import disk_plan
from common.kv.store.disk import DISK_ANSWER_S
from common.kv.store.disk_plan import FUTURE_S, DiskStore
from common.kv.store.recency import OWNER_BYTES
from common.kv.store.record import Record
from common.kv.store.results import StoreResults
from common.kv.store.table import BlockName, StoreTable

TTL = 300.0
OWNER = b"o" * OWNER_BYTES


def name(text: str) -> BlockName:
    return BlockName(0, text.encode() * 8)


def ours(text: str) -> bytes:
    """The name by which routers know the block."""
    return text.upper().encode()


class Rig:
    """`held`: what a restart finds, by slot of the disk; None: that is not known yet."""

    def __init__(self, held: str | None = "", slots: int = 8) -> None:
        self.clock = ManualClock()
        self.memory, self.disk = StoreTable(slots, TTL, 1), StoreTable(slots, TTL, 1)
        self.index: dict[int, Record] | None = None
        if held is not None:
            self.find(held)
        self.store = DiskStore(self.memory, self.disk, lambda: self.index, slots, TTL, self.clock)

    def find(self, held: str, ahead_s: float = 0.0) -> None:
        """This is what lies on the disk, used `ahead_s` after now by the clock of then."""
        used_at = self.clock.unix_ms() / 1000 + ahead_s
        self.index = {
            at: Record(name(text), b"d" * 16, used_at, ours=ours(text), owner=OWNER)
            for at, text in enumerate(held)
        }

    def begin_save(self, text: str) -> int:
        """Returns the slot in memory that is being written."""
        slot = self.memory.begin_write(name(text))
        assert slot is not None
        self.store.saved(slot, name(text), ours(text))
        return slot

    def save(self, text: str) -> None:
        self.memory.end_write(self.begin_save(text), self.clock.monotonic(), whole=True)

    def spill(self) -> list[int]:
        """Slots of the disk to which a step begins to write."""
        return [spill.disk_slot for spill in self.store.step()[0]]

    def untold(self) -> bool:
        return self.store.untold

    def pending(self) -> bool:
        return self.store.pending

    def find_damaged(self, at: int) -> None:
        """A prompt that reads this slot of the disk finds another block there."""
        assert self.store.begin_read([at]) == [at]
        self.store.ended(StoreResults(disk_damaged=[at]))
        self.store.end_read([at])


def test_what_was_written_is_told_once_and_that_it_is_gone_too() -> None:
    rig = Rig()
    rig.save("a")
    (at,) = rig.spill()
    assert rig.store.changes() == {}, "it is not written yet"
    rig.store.ended(StoreResults(spilled=[at]))
    assert rig.store.changes() == {name("a"): b"A"}
    assert (rig.store.changes(), rig.untold()) == ({}, False)
    assert rig.store._ours == {}, "names are not kept for blocks that were told"
    rig.find_damaged(at)
    assert rig.store.changes() == {name("a"): None}


def test_what_came_and_went_before_it_was_told_is_not_held() -> None:
    rig = Rig()
    rig.save("a")
    (at,) = rig.spill()
    rig.store.ended(StoreResults(spilled=[at]))
    rig.find_damaged(at)
    assert rig.store.changes() == {name("a"): None}


def test_what_a_restart_finds_is_told_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_plan, "TOLD_MAX", 2)
    rig = Rig("abc")
    rig.store.step()
    told = [rig.store.changes() for _ in range(3)]
    assert [len(part) for part in told] == [2, 1, 0]
    assert told[0] | told[1] == {name(text): ours(text) for text in "abc"}
    assert not rig.untold()


def test_a_disk_that_fails_takes_its_blocks_away() -> None:
    rig = Rig("ab")
    rig.store.step()
    rig.store.changes()
    rig.store.ended(StoreResults(disk_off=True))
    assert rig.store.changes() == {name("a"): None, name("b"): None}
    assert not rig.untold()


def test_what_lies_on_the_disk_is_waited_for_so_long_and_not_if_it_fails() -> None:
    rig = Rig(held=None)
    assert rig.untold()
    rig.clock.advance(DISK_ANSWER_S)
    assert not rig.untold()
    other = Rig(held=None)
    other.store.ended(StoreResults(disk_off=True))
    assert not other.untold()


def test_a_slot_of_memory_that_is_saved_anew_has_its_turn_anew() -> None:
    rig = Rig()
    first = rig.begin_save("a")
    rig.save("b")
    rig.memory.end_write(first, rig.clock.monotonic(), whole=False)
    rig.save("c")
    assert rig.memory.name_in(first) == name("c")
    assert [spill.name for spill in rig.store.step()[0]] == [name("b"), name("c")]
    assert rig.store.counts.skipped == 1


def test_the_first_use_after_a_restart_is_told_at_once() -> None:
    rig = Rig("ab")
    rig.store.step()
    rig.store.mark_used([name("a")])
    assert rig.store.step()[1] == [0]
    rig.store.mark_used([name("a")])
    assert rig.store.step()[1] == []


def test_a_use_by_another_worker_is_told_to_the_disk() -> None:
    rig = Rig("ab")
    rig.store.step()
    rig.store.ended(StoreResults(used=[name("b")]))
    assert rig.store.step()[1] == [1]


def test_a_clock_that_was_set_back_a_little_costs_no_block_and_each_keeps_its_owner() -> None:
    rig = Rig(held=None)
    rig.find("a", ahead_s=FUTURE_S / 2)
    assert rig.store.find([name("a")]) == [0]
    assert rig.disk.owner_in(0) == OWNER


def test_a_block_that_could_not_be_written_is_none_to_drop() -> None:
    rig = Rig()
    rig.save("a")
    (at,) = rig.spill()
    rig.store.ended(StoreResults(unspilled=[at]))
    assert rig.store.step() == ([], [], [])
    assert not rig.pending()


def test_steps_go_on_until_the_disk_was_told_what_is_dropped() -> None:
    rig = Rig("a")
    rig.store.step()
    assert not rig.pending()
    rig.store.ended(StoreResults(dropped_ends=[name("a").block_hash[-8:]]))
    assert rig.pending()
    assert rig.store.step()[2] == [0]
    assert not rig.pending()
