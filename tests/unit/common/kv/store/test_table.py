"""What a store holds: found only when all ranks wrote it, kept while it is read, bounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from common.kv.store.slots import SLOT_TRANSITIONS, SlotState
from common.kv.store.table import BlockName, StoreTable
from common.transitions import IllegalTransitionError

TTL = 10.0


def name(number: int) -> BlockName:
    return BlockName(0, number.to_bytes(32))


def names(*numbers: int) -> list[BlockName]:
    return [name(number) for number in numbers]


def fill(table: StoreTable, *numbers: int, now: float = 0.0) -> list[int]:
    """The slots of these blocks, which all ranks have written."""
    slots = []
    for number in numbers:
        slot = table.begin_write(name(number))
        assert slot is not None
        assert table.end_write(slot, now, whole=True)
        slots.append(slot)
    return slots


def test_the_leading_run_is_found_and_nothing_behind_a_gap() -> None:
    table = StoreTable(8, TTL)
    slots = fill(table, 1, 2, 4)
    assert table.find(names(1, 2, 3, 4), 0) == slots[:2]
    assert table.find(names(3, 4), 0) == []
    assert table.find([BlockName(1, name(1).block_hash)], 0) == [], "another group's block"


def test_a_block_is_found_when_every_rank_has_written_it() -> None:
    table = StoreTable(2, TTL, ranks=2)
    slot = table.begin_write(name(1))
    assert slot is not None
    assert not table.end_write(slot, 0, whole=True)
    assert table.find(names(1), 0) == []
    assert name(1) in table, "it is not written twice at once"
    assert table.end_write(slot, 0, whole=True)
    assert table.find(names(1), 0) == [slot]


@pytest.mark.parametrize("reports", [(True, False), (False, True), (False, False)])
def test_a_block_that_one_rank_has_not_written_is_not_held(reports: tuple[bool, bool]) -> None:
    table = StoreTable(1, TTL, ranks=2)
    slot = table.begin_write(name(1))
    assert slot is not None
    for whole in reports:
        table.end_write(slot, 0, whole=whole)
    assert table.find(names(1), 0) == []
    assert name(1) not in table
    assert table.changes() == {name(1): False}, "who saw it being written learns that it is gone"
    assert table.begin_write(name(1)) == slot
    assert table.counts.held == 0


def test_the_least_recently_used_block_makes_room() -> None:
    table = StoreTable(3, TTL)
    fill(table, 1, 2, 3)
    table.mark_used(names(1), 1)
    fill(table, 4)
    assert [name(number) in table for number in (1, 2, 3, 4)] == [True, False, True, True]
    assert (table.counts.evicted, table.counts.held) == (1, 3)


def test_of_one_prompt_the_last_block_goes_first() -> None:
    table = StoreTable(3, TTL)
    fill(table, 1, 2, 3)
    table.mark_used(names(1, 2, 3), 1)
    fill(table, 4)
    assert len(table.find(names(1, 2, 3), 1)) == 2
    read = table.find(names(1, 2), 1)
    table.begin_read(read)
    table.end_read(read, 2)
    fill(table, 5, 6)
    assert len(table.find(names(1, 2), 2)) == 1, "the same after a read"


def test_what_is_read_or_written_is_not_evicted() -> None:
    table = StoreTable(2, TTL)
    (read,) = fill(table, 1)
    table.begin_read([read])
    assert table.begin_write(name(2)) is not None
    assert table.begin_write(name(3)) is None
    table.begin_read([read])
    table.end_read([read], 0)
    assert table.begin_write(name(3)) is None, "one reader is left"
    table.end_read([read], 0)
    assert table.begin_write(name(3)) == read


def test_what_nobody_uses_expires() -> None:
    table = StoreTable(4, TTL)
    fill(table, 1, now=0)
    fill(table, 2, 3, now=4)
    assert table.find(names(1), TTL) == [], "an expired block is not found"
    table.mark_used(names(2), TTL)
    table.expire(TTL + 4)
    assert [name(number) in table for number in (1, 2, 3)] == [False, True, False]
    assert (table.counts.expired, table.counts.held) == (2, 1)


def test_a_read_is_a_use_and_does_not_expire_meanwhile() -> None:
    table = StoreTable(1, TTL)
    read = fill(table, 1)
    table.begin_read(read)
    table.expire(100)
    assert table.find(names(1), 100) == read
    table.end_read(read, 100)
    table.expire(100 + TTL - 1)
    assert table.find(names(1), 100 + TTL - 1) == read


def test_a_damaged_block_is_gone_at_once_and_its_slot_when_all_readers_are() -> None:
    table = StoreTable(1, TTL)
    (slot,) = fill(table, 1)
    table.begin_read([slot])
    table.begin_read([slot])
    table.damaged(slot)
    table.damaged(slot)
    assert table.find(names(1), 0) == []
    assert table.counts.held == 0
    table.end_read([slot], 0)
    assert table.begin_write(name(1)) is None
    table.end_read([slot], 0)
    assert table.begin_write(name(1)) == slot


def test_what_was_there_at_the_start_is_found_until_it_expires() -> None:
    table = StoreTable(4, TTL)
    table.restore([(2, name(1), 5.0, b""), (0, name(2), 3.0, b""), (3, name(1), 2.0, b"")])
    table.check_invariants()
    assert table.counts.held == 2
    assert table.find(names(1, 2), 0) == [2, 0]
    assert table.find(names(2), 3) == []
    table.expire(4)
    assert [name(number) in table for number in (1, 2)] == [True, False]
    assert sorted(fill(table, 3, 4, 5)) == [0, 1, 3]
    fill(table, 6)
    assert name(1) not in table, "it was used least recently"
    with pytest.raises(AssertionError, match="in use"):
        table.restore([])


def test_states_move_as_the_table_says() -> None:
    table = StoreTable(1, TTL)
    (slot,) = fill(table, 1)
    assert SLOT_TRANSITIONS.keys() == set(SlotState)
    for old, new in pairwise((SlotState.READY, SlotState.READING, SlotState.DAMAGED)):
        assert new in SLOT_TRANSITIONS[old]
    with pytest.raises(IllegalTransitionError, match="slot 0 of the store"):
        table.end_write(slot, 0, whole=True)


def test_what_is_taken_is_kept_and_what_is_gone_is_not() -> None:
    table = StoreTable(4, TTL)
    slots = fill(table, 1, 2)
    assert table.take(names(1, 2, 3), 0) == slots
    table.expire(2 * TTL)
    assert table.find(names(1, 2), 2 * TTL) == slots
    table.damaged(slots[1])
    table.end_read(slots, 0)
    table.check_invariants()
    assert table.begin_read(slots) == slots[:1], "found before it was damaged"
    table.end_read(slots[:1], 0)
    table.check_invariants()


def test_changes_are_told_once_each_as_they_are_now() -> None:
    table = StoreTable(2, TTL)
    slots = fill(table, 1, 2)
    assert table.changes() == {name(1): True, name(2): True}
    assert table.changes() == {}
    fill(table, 3)
    assert table.changes() == {name(1): False, name(3): True}
    assert table.take(names(2), 0) == slots[1:]
    table.damaged(slots[1])
    assert table.changes() == {name(2): False}
    table.end_read(slots[1:], 0)
    table.expire(2 * TTL)
    assert table.changes() == {name(3): False}


def test_every_method_holds_the_guard() -> None:
    class Guard:
        held = 0

        def __enter__(self) -> None:
            self.held += 1

        def __exit__(self, *_: object) -> None:
            """Let go."""

    guard = Guard()
    table = StoreTable(2, TTL, guard=guard)
    (slot,) = fill(table, 1)
    calls = (
        lambda: table.find(names(1), 0),
        lambda: table.take(names(1), 0),
        lambda: table.end_read([slot], 0),
        lambda: table.begin_read([slot]),
        lambda: table.damaged(slot),
        lambda: table.mark_used(names(1), 0),
        lambda: table.expire(0),
        lambda: table.pin(names(1)),
        lambda: table.unpin(names(1), 0),
        lambda: table.drop(names(1)),
        lambda: table.ending([]),
        table.changes,
        lambda: name(1) in table,
    )
    for call in calls:
        before = guard.held
        call()
        assert guard.held > before


def test_a_pinned_block_is_neither_evicted_nor_expired() -> None:
    table = StoreTable(4, TTL)
    slots = fill(table, 1, 2, 3, 4)
    assert table.pin(names(1, 2)) == 0
    fill(table, 5, 6, 7)
    assert table.find(names(1, 2), 100 * TTL) == slots[:2]
    table.expire(100 * TTL)
    table.check_invariants()
    assert (table.counts.pinned, table.counts.held) == (2, 2)
    table.unpin(names(1), 100 * TTL)
    assert table.find(names(1), 100 * TTL) == slots[:1], "it counts as used now"
    fill(table, 8, 9, 10, now=100 * TTL)
    assert name(1) not in table
    assert name(2) in table
    table.check_invariants()


def test_half_of_the_slots_can_be_pinned_and_the_rest_goes_on() -> None:
    table = StoreTable(5, TTL)
    fill(table, 1, 2, 3, 4)
    assert table.pin(names(1, 2, 3, 4)) == 2
    assert table.pin(names(1, 2)) == 0, "once more costs nothing"
    fill(table, 5, 6, 7, 8)
    assert [name(number) in table for number in (1, 2, 3, 4)] == [True, True, False, False]
    assert table.pin(names(99)) == 0, "what is not held is not kept"
    table.check_invariants()


def test_what_is_read_stays_pinned_and_what_is_damaged_does_not() -> None:
    table = StoreTable(2, TTL)
    (slot,) = fill(table, 1)
    table.begin_read([slot])
    table.pin(names(1))
    table.end_read([slot], 0)
    table.expire(100 * TTL)
    assert table.take(names(1), 100 * TTL) == [slot]
    table.damaged(slot)
    table.check_invariants()
    table.end_read([slot], 0)
    assert (table.counts.pinned, name(1) in table) == (0, False)


def test_dropped_blocks_are_gone_whatever_becomes_of_them() -> None:
    table = StoreTable(8, TTL)
    ready, read, pinned = fill(table, 1, 2, 3)
    table.begin_read([read])
    table.pin(names(3))
    writing = table.begin_write(name(4))
    assert writing is not None
    table.changes()
    assert table.drop(names(1, 2, 3, 4, 5)) == [ready, read, pinned]
    table.check_invariants()
    assert table.changes() == dict.fromkeys(names(1, 2, 3), False)
    assert [name(number) in table for number in (1, 2, 3)] == [False] * 3
    assert table.end_write(writing, 0, whole=True)
    assert name(4) not in table, "what was being written is not held either"
    table.end_read([read], 0)
    table.check_invariants()
    assert (table.counts.held, table.counts.pinned) == (0, 0)
    fill(table, 1, 2, 3, 4)
    table.check_invariants()


def test_blocks_are_known_by_the_end_of_their_hashes() -> None:
    table = StoreTable(4, TTL)
    fill(table, 1, 2)
    ends = [number.to_bytes(8) for number in (2, 9, 1)]
    assert table.ending(ends) == names(2, 1)


class Model(RuleBasedStateMachine):
    """Any order of calls, against sets: what may be found, and what must be."""

    def __init__(self) -> None:
        super().__init__()
        self.table = StoreTable(3, TTL, ranks=2)
        self.now = 0.0
        #: By slot: the block, and the ranks' reports so far.
        self.writing: dict[int, tuple[int, list[bool]]] = {}
        self.readers: list[list[int]] = []
        #: Whatever all ranks wrote and was not found damaged since: by slot.
        self.written: dict[int, int] = {}
        #: Blocks that are kept.
        self.pinned: set[int] = set()
        #: Slots whose block was dropped while it was written.
        self.dropped: set[int] = set()

    @rule(number=st.integers(0, 5))
    def write(self, number: int) -> None:
        if name(number) in self.table:
            return
        slot = self.table.begin_write(name(number))
        in_use = set(self.writing) | {at for slots in self.readers for at in slots}
        in_use |= {self.table._by_name[name(kept)] for kept in self.pinned}
        assert (slot is None) == (len(in_use) == 3)
        if slot is not None:
            assert slot not in in_use
            self.written.pop(slot, None)
            self.writing[slot] = (number, [])

    @rule(choice=st.integers(0, 2), whole=st.booleans())
    def report(self, choice: int, *, whole: bool) -> None:
        if not self.writing:
            return
        slot = sorted(self.writing)[choice % len(self.writing)]
        number, reports = self.writing[slot]
        reports.append(whole)
        assert self.table.end_write(slot, self.now, whole=whole) == (len(reports) == 2)
        if len(reports) == 2:
            del self.writing[slot]
            if all(reports) and slot not in self.dropped:
                self.written[slot] = number
            self.dropped.discard(slot)

    @rule(numbers=st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    def read(self, numbers: list[int]) -> None:
        found = self.table.find(names(*numbers), self.now)
        assert [self.written.get(slot) for slot in found] == numbers[: len(found)]
        if found:
            self.table.begin_read(found)
            self.readers.append(found)

    @rule(choice=st.integers(0, 9), damaged=st.booleans())
    def end(self, choice: int, *, damaged: bool) -> None:
        if not self.readers:
            return
        slots = self.readers.pop(choice % len(self.readers))
        if damaged:
            self.table.damaged(slots[-1])
            self.pinned.discard(self.written.pop(slots[-1], -1))
        self.table.end_read(slots, self.now)

    @rule(number=st.integers(0, 5))
    def pin(self, number: int) -> None:
        held = name(number) in self.table and all(
            number != writing for writing, _ in self.writing.values()
        )
        room = not self.pinned or number in self.pinned
        assert self.table.pin(names(number)) == (held and not room)
        if held and room:
            self.pinned.add(number)

    @rule(number=st.integers(0, 5))
    def unpin(self, number: int) -> None:
        self.table.unpin(names(number), self.now)
        self.pinned.discard(number)

    @rule(number=st.integers(0, 5))
    def drop(self, number: int) -> None:
        for slot in self.table.drop(names(number)):
            assert self.written.pop(slot) == number
        self.pinned.discard(number)
        self.dropped |= {at for at, (writing, _) in self.writing.items() if writing == number}
        assert not self.table.find(names(number), self.now)

    @rule(numbers=st.lists(st.integers(0, 5), max_size=4))
    def touch(self, numbers: list[int]) -> None:
        self.table.mark_used(names(*numbers), self.now)

    @rule(seconds=st.sampled_from((0.0, 1.0, TTL)))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.table.expire(self.now)

    @invariant()
    def consistent(self) -> None:
        self.table.check_invariants()


Model.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestModel = Model.TestCase
