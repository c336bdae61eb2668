"""What goes to the disk below a store, and which prompts it serves from there."""

from __future__ import annotations

from typing import Any

import pytest

from common.blocks import KvGroup
from common.clock import ManualClock
from common.config import StoreConfig
from common.engine.connector.scheduler import SchedulerHalf
from common.engine.connector.store import StoreScheduler
from common.kv.store.disk_plan import FUTURE_S, DiskStore, disk_slots, held_by_all
from common.kv.store.record import Record, record_bytes
from common.kv.store.results import StoreResults
from common.kv.store.table import BlockName, Medium, StoreTable
from tests.unit.common.engine.connector import test_scheduler as made
from tests.unit.common.engine.connector import test_store as memory_only

BLOCK = memory_only.BLOCK
TTL = 300.0


class Rig(memory_only.Rig):
    """The scheduler half with a store over a disk, and the worker half played."""

    def __init__(
        self,
        slots: int = 16,
        on_disk: int = 32,
        *,
        ranks: int = 1,
        backlog: int = 4,
        index: dict[int, Record] | None = None,
        fingerprint: str = "",
    ) -> None:
        self.clock = ManualClock()
        self.table = StoreTable(slots, TTL, ranks)
        self.disk_table = StoreTable(on_disk, TTL, ranks)
        self.index: dict[int, Record] | None = index if index is not None else {}
        self.disk = DiskStore(
            self.table, self.disk_table, lambda: self.index, backlog, TTL, self.clock
        )
        told = {"fingerprint": fingerprint}
        store = StoreScheduler(self.table, BLOCK, 4, self.clock.monotonic, self.disk, **told)
        self.half = SchedulerHalf([KvGroup(BLOCK)], store)
        #: Slots of the disk that are being written.
        self.writing: list[int] = []

    def step(self, output: Any) -> Any:
        plan = super().step(output)
        self.writing += [spill.disk_slot for spill in plan.spills]
        self.disk_table.check_invariants()
        return plan

    def waits(self) -> bool:
        """Whether steps go on without requests."""
        return self.half.pending

    def spilled(self) -> None:
        """All that is being written was written."""
        written, self.writing = self.writing, []
        self.half.copies_ended(StoreResults(spilled=written), (), ())

    def settle(self) -> None:
        """Until all that waits is on the disk."""
        for _ in range(100):
            self.spilled()
            if not self.half.pending:
                return
            self.done(self.step(made.output()))
        pytest.fail("it waits for ever")

    def forget_memory(self) -> None:
        """Other blocks take the place of all in memory, and do not go to the disk."""
        off, self.disk._off = self.disk._off, True
        self.store(16, prefix="other")
        self.disk._waiting.clear()
        self.disk._off = off


def name(text: str) -> BlockName:
    return BlockName(0, text.encode())


def record(text: str, used_at: float) -> Record:
    return Record(name(text), b"d" * 16, used_at)


def on_disk(rig: Rig, wanted: Any, plan: Any) -> list[tuple[str, bytes]]:
    """Whence the blocks of the load of this request come."""
    (load,) = [load for load in plan.loads if load.request_id == wanted.request_id]
    return [(copy.medium.value, copy.name.block_hash) for copy in load.copies]


def test_a_saved_block_goes_to_the_disk_once_and_no_step_waits_for_it() -> None:
    rig = Rig()
    request = rig.add("a#0", 32)
    plan = rig.new(request, [3, 4], 32)
    assert plan.spills == [], "memory does not hold it yet"
    rig.done(plan)
    plan = rig.step(made.output())
    assert [spill.name.block_hash for spill in plan.spills] == [b"p0", b"p1"]
    assert rig.waits(), "steps go on until it is written"
    assert rig.step(made.output()).spills == []
    rig.spilled()
    assert rig.waits(), "nobody knows yet that it is held"
    assert rig.step(made.output()).disk_counts.held == 2
    assert not rig.waits()


def test_the_backlog_of_the_disk_is_bounded() -> None:
    rig = Rig(backlog=2)
    rig.store(6)
    assert rig.step(made.output()).spills == []
    assert len(rig.writing) == 2
    rig.settle()
    assert rig.disk.counts.held == 6


def test_what_memory_drops_before_its_turn_is_skipped() -> None:
    rig = Rig(slots=4, backlog=1)
    rig.store(4)
    rig.store(4, prefix="q")
    rig.settle()
    assert rig.disk.counts.held + rig.disk.counts.skipped == 8
    assert rig.disk.counts.skipped > 0


def test_a_save_that_was_withdrawn_does_not_hold_up_what_comes_after_it() -> None:
    """The block is saved to another slot, and the first one stays free."""
    rig = Rig()
    first = rig.add("a#0", 32)
    slots = [copy.slot for copy in rig.new(first, [3, 4], 32).saves]
    rig.half.finished(first, [], aborted=False)
    taken = rig.add("b#0", 20, prefix="q")
    assert rig.new(taken, [3, 4], 5).withdrawn == [3, 4]
    rig.half.copies_ended(StoreResults(dropped=slots), (), ())
    again = rig.add("c#0", 16)
    plan = rig.new(again, [7], 16)
    assert [copy.slot for copy in plan.saves] == slots[1:]
    rig.done(plan)
    rig.settle()
    assert (rig.disk.counts.held, rig.disk.counts.skipped) == (1, 2)


def test_a_prompt_is_served_from_the_disk_and_gets_to_memory_again() -> None:
    rig = Rig()
    rig.store(3)
    rig.settle()
    rig.forget_memory()
    wanted = rig.add("w#0", 60)
    assert rig.half.matched_tokens(wanted, 0) == 48
    rig.half.allocated(wanted, made.blocks([7, 8, 9]), 48)
    plan = rig.step(made.output())
    assert on_disk(rig, wanted, plan) == [("disk", b"p0"), ("disk", b"p1"), ("disk", b"p2")]
    rig.half.copies_ended(StoreResults(), ("w#0",), ())
    wanted.num_computed_tokens = 48
    rig.half.allocated(wanted, made.blocks([7, 8, 9, 10]), 0)
    plan = rig.new(wanted, [7, 8, 9, 10], 12, cached=48)
    assert memory_only.saved(plan) == [(7, b"p0"), (8, b"p1"), (9, b"p2")]
    rig.done(plan)
    assert rig.step(made.output()).spills == [], "the disk has it"
    assert not rig.waits()


def test_memory_goes_first_and_the_disk_fills_gaps() -> None:
    rig = Rig(slots=2)
    rig.store(2)
    rig.settle()
    rig.store(2, prefix="q")
    rig.settle()
    rig.table.begin_read(rig.table.find([name("q0")], 0))
    rig.store(1)
    rig.settle()
    assert name("p0") in rig.table
    assert name("p1") not in rig.table
    wanted = rig.add("w#0", 40)
    assert rig.half.matched_tokens(wanted, 0) == 32
    rig.half.allocated(wanted, made.blocks([7, 8]), 32)
    assert on_disk(rig, wanted, rig.step(made.output())) == [("ram", b"p0"), ("disk", b"p1")]


def test_a_gap_in_memory_is_filled_from_the_disk_up_to_what_memory_has_again() -> None:
    rig = Rig()
    rig.store(3)
    rig.settle()
    rig.disk_table.begin_read(rig.disk_table.find([name("p2")], 0))
    rig.disk_table.damaged(*rig.disk_table.find([name("p2")], 0))
    rig.table._drop(*rig.table.find([name("p1")], 0))
    wanted = rig.add("w#0", 60)
    assert rig.half.matched_tokens(wanted, 0) == 48
    rig.half.allocated(wanted, made.blocks([7, 8, 9]), 48)
    plan = rig.step(made.output())
    assert [medium for medium, _ in on_disk(rig, wanted, plan)] == ["ram", "disk", "ram"]


def test_what_is_read_from_the_disk_is_not_overwritten_there() -> None:
    rig = Rig(on_disk=2)
    rig.store(2)
    rig.settle()
    rig.forget_memory()
    wanted = rig.add("w#0", 40)
    rig.half.matched_tokens(wanted, 0)
    rig.half.allocated(wanted, made.blocks([7, 8]), 32)
    rig.step(made.output())
    rig.store(1, prefix="q")
    assert rig.step(made.output()).spills == []
    rig.half.copies_ended(StoreResults(), ("w#0",), ())
    assert len(rig.step(made.output()).spills) == 1


def test_a_damaged_block_is_dropped_and_written_anew() -> None:
    rig = Rig()
    rig.store(2)
    rig.settle()
    rig.forget_memory()
    wanted = rig.add("w#0", 40)
    rig.half.matched_tokens(wanted, 0)
    rig.half.allocated(wanted, made.blocks([7, 8]), 32)
    (load,) = rig.step(made.output()).loads
    slot = load.copies[1].slot
    rig.half.copies_ended(StoreResults(disk_damaged=[slot]), {"w#0"}, {"w#0"})
    assert rig.half.matched_tokens(wanted, 0) == 0, "computed, once it has failed"
    assert rig.half.matched_tokens(rig.add("x#0", 40), 0) == BLOCK
    rig.half.allocated(wanted, made.blocks([7, 8, 9]), 0)
    rig.done(rig.new(wanted, [7, 8, 9], 40))
    assert [spill.name.block_hash for spill in rig.step(made.output()).spills] == [b"p1"]


def test_a_block_that_a_rank_could_not_write_is_not_held() -> None:
    rig = Rig(ranks=2)
    request = rig.add("a#0", 16)
    plan = rig.new(request, [3], 16)
    rig.done(plan)
    rig.done(plan)
    plan = rig.step(made.output())
    (spill,) = plan.spills
    rig.spilled()
    assert rig.waits()
    rig.half.copies_ended(StoreResults(unspilled=[spill.disk_slot]), (), ())
    rig.step(made.output())
    assert not rig.waits()
    assert rig.disk.find([name("p0")]) == []
    assert (rig.disk.counts.held, rig.disk.counts.skipped) == (0, 1)


def test_after_a_restart_the_disk_serves_what_it_held() -> None:
    rig = Rig(index={4: record("p1", 0), 9: record("p0", 0)})
    unix = rig.clock.unix_ms() / 1000
    rig.index = {
        4: record("p1", unix - 10),
        9: record("p0", unix - 10),
        5: record("p2", unix - TTL - 1),
        6: record("p3", unix + FUTURE_S + 1),
    }
    wanted = rig.add("w#0", 70)
    assert rig.half.matched_tokens(wanted, 0) == 32
    assert (rig.disk.counts.held, rig.disk.counts.expired) == (2, 2)
    rig.clock.advance(TTL - 11)
    assert rig.half.matched_tokens(wanted, 0) == 32
    rig.clock.advance(2)
    assert rig.half.matched_tokens(wanted, 0) == 0, "its time went on while nobody was there"
    rig.step(made.output())
    assert rig.disk.counts.held == 0


def test_until_the_disk_is_known_nothing_is_found_or_written_there() -> None:
    """A block could be written over one that is still to be found."""
    rig = Rig(index={})
    rig.index = None
    rig.store(2)
    assert rig.step(made.output()).spills == []
    assert not rig.waits(), "no step is made for it"
    rig.index = {0: record("q0", rig.clock.unix_ms() / 1000)}
    plan = rig.step(made.output())
    assert {spill.disk_slot for spill in plan.spills}.isdisjoint({0})
    assert len(plan.spills) == 2


def test_two_slots_with_one_block_count_as_the_later_one() -> None:
    rig = Rig()
    unix = rig.clock.unix_ms() / 1000
    rig.index = {1: record("p0", unix - 5), 2: record("p0", unix - 1), 3: record("p0", unix - 9)}
    assert rig.disk.find([name("p0")]) == [2]
    assert rig.disk.counts.held == 1
    rig.disk_table.check_invariants()


def test_only_what_every_rank_has_is_held() -> None:
    one = [(0, record("p0", 5)), (1, record("p1", 5)), (2, record("p2", 5))]
    other = [(0, record("p0", 6)), (1, record("q1", 5)), (3, record("p3", 5))]
    assert held_by_all([one]) == dict(one)
    assert held_by_all([one, other]) == {0: record("p0", 5)}


def test_a_failed_disk_is_left_alone() -> None:
    rig = Rig()
    rig.store(2)
    rig.settle()
    rig.forget_memory()
    wanted = rig.add("w#0", 40)
    rig.half.matched_tokens(wanted, 0)
    rig.half.allocated(wanted, made.blocks([7, 8]), 32)
    rig.step(made.output())
    rig.half.copies_ended(StoreResults(disk_off=True), {"w#0"}, {"w#0"})
    assert rig.half.matched_tokens(rig.add("x#0", 40), 0) == 0
    rig.store(1, prefix="q")
    plan = rig.step(made.output())
    assert (plan.spills, plan.used, plan.disk_counts.held) == ([], [], 0)
    assert not rig.waits()
    assert rig.half.matched_tokens(rig.add("y#0", 20, prefix="q"), 0) == BLOCK, "memory goes on"


def test_a_use_is_told_to_the_disk_now_and_then() -> None:
    rig = Rig()
    rig.store(2)
    rig.settle()

    def use(at: str) -> list[int]:
        hit = rig.add(at, 33)
        rig.new(hit, [3, 4, 5], 1, cached=32)
        rig.half.finished(hit, [], aborted=False)
        return list(rig.step(made.output()).used)

    assert use("a#0") == [], "it was just written"
    rig.clock.advance(TTL / 8)
    assert use("b#0") == [0, 1]
    assert use("c#0") == []
    rig.clock.advance(TTL - 1)
    assert rig.disk.find([name("p0"), name("p1")]) == [0, 1], "its time is counted from the use"


def test_slots_are_what_the_disk_holds_on_all_ranks() -> None:
    one = record_bytes(1 << 20)
    assert one == (1 << 20) + 4096
    config = StoreConfig(disk_mib=10)
    assert disk_slots(config, 1 << 20, 1) == (10 << 20) // one
    assert disk_slots(config, 1 << 20, 2) == (10 << 20) // (2 * one)
    assert disk_slots(StoreConfig(), 1 << 20, 1) == 0
    assert Medium.RAM.value == "ram"


@pytest.mark.parametrize("backlog", [0, 1])
def test_a_backlog_smaller_than_a_block_still_writes(backlog: int) -> None:
    rig = Rig(backlog=backlog)
    rig.store(2)
    rig.settle()
    assert rig.disk.counts.held == 2


def ends(*texts: str) -> list[bytes]:
    return [text.encode()[-8:] for text in texts]


def test_what_an_operator_drops_is_not_found_by_the_next_process_either() -> None:
    rig = Rig()
    rig.store(3)
    rig.settle()
    slots = rig.disk.find([name("p0"), name("p1")])
    rig.half.copies_ended(StoreResults(dropped_ends=ends("p0", "p1", "zz")), (), ())
    assert rig.disk.find([name("p0")]) == []
    assert len(rig.disk.find([name("p2")])) == 1
    assert rig.waits()
    assert rig.step(made.output()).dropped == slots
    assert rig.step(made.output()).dropped == []


def test_what_is_dropped_while_it_is_written_is_not_found_either() -> None:
    rig = Rig()
    rig.store(1)
    (spill,) = [rig.writing[0]] if rig.writing else [rig.step(made.output()).spills[0].disk_slot]
    rig.half.copies_ended(StoreResults(dropped_ends=ends("p0")), (), ())
    assert rig.step(made.output()).dropped == [], "it is not written yet"
    rig.spilled()
    assert rig.disk.find([name("p0")]) == []
    assert rig.step(made.output()).dropped == [spill]
