"""What is told of the disk below a store: by the names that routers know, and not for ever."""

from __future__ import annotations

from typing import Any

import pytest

from common.kv.store import disk_plan
from common.kv.store.disk import DISK_ANSWER_S
from common.kv.store.record import Record
from common.kv.store.results import StoreResults
from common.kv.store.table import BlockName
from common.net.wire import pack_ids
from common.prefix import prefix_hashes, split
from tests.unit.common.engine.connector import test_scheduler as made
from tests.unit.common.engine.connector.test_store_disk import BLOCK, TTL, Rig, name


class Telling(Rig):
    """Notes what the plans tell."""

    def __init__(self, fingerprint: str = "f") -> None:
        super().__init__(fingerprint=fingerprint)
        self.parts: list[dict[BlockName, bytes | None]] = []

    def step(self, output: Any) -> Any:
        plan = super().step(output)
        self.parts += [plan.told] if plan.told else []
        return plan

    def told(self) -> dict[BlockName, bytes | None]:
        """In this step and those before it since the last call."""
        self.step(made.output())
        parts, self.parts = self.parts, []
        return {name: our for part in parts for name, our in part.items()}


def ours(blocks: int) -> list[bytes]:
    """Of the prompts of the rig, which count from zero."""
    return split(prefix_hashes(pack_ids(list(range(blocks * BLOCK))), BLOCK, None))


def found(rig: Rig, blocks: int) -> dict[int, Record]:
    """What an earlier process left on the disk."""
    unix = rig.clock.unix_ms() / 1000
    names = enumerate(ours(blocks))
    return {at: Record(name(f"p{at}"), b"d" * 16, unix, our) for at, our in names}


def test_records_carry_the_names_and_what_is_written_is_told_by_them() -> None:
    rig = Telling()
    rig.told()
    rig.done(rig.new(rig.add("a#0", 48), [3, 4, 5], 48))
    plan = rig.step(made.output())
    assert [spill.ours for spill in plan.spills] == ours(3)
    assert rig.told() == {}, "it is not there yet"
    rig.spilled()
    assert rig.half.pending, "it is to be told"
    assert rig.told() == {name(f"p{at}"): our for at, our in enumerate(ours(3))}
    assert rig.told() == {}


def test_what_was_not_written_is_told_to_be_gone() -> None:
    rig = Telling()
    rig.done(rig.new(rig.add("a#0", 16), [3], 16))
    plan = rig.step(made.output())
    rig.half.copies_ended(StoreResults(unspilled=[plan.spills[0].disk_slot]), (), ())
    assert rig.told() == {name("p0"): None}


def test_after_a_restart_an_idle_engine_tells_what_the_disk_has() -> None:
    rig = Telling()
    rig.index = None
    assert rig.half.pending, "steps are made until it is known"
    rig.index = found(rig, 2)
    assert rig.told() == {name("p0"): ours(2)[0], name("p1"): ours(2)[1]}
    rig.step(made.output())
    assert not rig.half.pending


def test_no_step_is_made_for_a_disk_that_does_not_answer_or_that_nobody_asks_for() -> None:
    rig = Telling()
    rig.index = None
    rig.clock.advance(DISK_ANSWER_S + 1)
    assert not rig.half.pending
    alone = Telling("")
    alone.index = found(alone, 2)
    assert not alone.half.pending
    assert alone.told() == {}
    assert not alone.disk.untold


def test_much_is_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_plan, "TOLD_MAX", 2)
    rig = Telling()
    rig.index = found(rig, 5)
    for _ in range(4):
        rig.step(made.output())
    assert [len(part) for part in rig.parts] == [2, 2, 1]
    assert [our for part in rig.parts for our in part.values()] == ours(5)
    assert not rig.half.pending


def test_a_disk_that_is_off_or_whose_blocks_are_too_old_holds_nothing() -> None:
    rig = Telling()
    rig.index = found(rig, 2)
    rig.step(made.output())
    rig.told()
    rig.half.copies_ended(StoreResults(disk_off=True), (), ())
    assert rig.half.pending, "it is to be told"
    assert rig.told() == {name("p0"): None, name("p1"): None}
    old = Telling()
    old.index = found(old, 2)
    old.step(made.output())
    old.told()
    old.clock.advance(TTL + 1)
    old.step(made.output())
    assert old.told() == {name("p0"): None, name("p1"): None}


def test_what_others_got_off_the_disk_lives_on() -> None:
    rig = Telling()
    rig.index = found(rig, 2)
    rig.step(made.output())
    rig.clock.advance(TTL - 1)
    rig.half.copies_ended(StoreResults(used=[name("p0")]), (), ())
    rig.clock.advance(2)
    rig.step(made.output())
    assert (len(rig.disk.find([name("p0")])), rig.disk.find([name("p1")])) == (1, [])


def test_what_was_damaged_since_it_was_found_is_not_kept_for_a_load() -> None:
    """The KV thread reads the disk, too, and may find a block damaged meanwhile."""
    rig = Telling()
    rig.index = found(rig, 2)
    slots = rig.disk.find([name("p0"), name("p1")])
    rig.disk_table.begin_read(slots[:1])
    rig.disk_table.damaged(slots[0])
    assert rig.disk.begin_read(slots) == slots[1:]
