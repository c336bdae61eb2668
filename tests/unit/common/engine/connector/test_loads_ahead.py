"""What the engine gets from the store before the stream that needs it is here."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from common.engine.connector.loads_ahead import FREE_PARTS, LOAD_BYTES
from common.engine.connector.metadata import AHEAD, StoreLoad
from common.kv.store.results import StoreResults
from common.kv.store.table import BlockName
from tests.unit.common.engine.connector import test_scheduler as made
from tests.unit.common.engine.connector.test_store import BLOCK, Rig, saved

FIRST = 100
"""The first of the engine's blocks that are free."""


class FakePool:
    """Free blocks, and what the engine's cache has."""

    def __init__(self, free: int) -> None:
        self.blocks = list(range(FIRST, FIRST + free))
        self.cached: set[BlockName] = set()
        self.given_back: list[Mapping[int, BlockName | None]] = []

    def __contains__(self, name: object) -> bool:
        return name in self.cached

    @property
    def free(self) -> int:
        return len(self.blocks)

    def take(self, count: int) -> list[int]:
        assert 0 < count <= len(self.blocks)
        taken, self.blocks = self.blocks[:count], self.blocks[count:]
        return taken

    def give_back(self, held: Mapping[int, BlockName | None]) -> None:
        self.given_back.append(held)
        self.blocks += held
        self.cached |= {name for name in held.values() if name is not None}


class AheadRig(Rig):
    """The store has four blocks, of which a load has two at most."""

    def __init__(self, free: int = 16, block_bytes: int = LOAD_BYTES // 2) -> None:
        super().__init__()
        self.store(4)
        self.pool = FakePool(free)
        assert self.half._store is not None
        self.half._store.bind_pool(self.pool, block_bytes)
        while self.half.pending:
            self.step(made.output())

    def ahead(self, *numbers: int) -> None:
        self.table.ahead.extend(name(number) for number in numbers)

    def load(self) -> list[tuple[int, bytes]]:
        """What the next step begins to load, and to which blocks."""
        loads: list[StoreLoad] = self.step(made.output()).loads
        assert all(load.request_id == AHEAD for load in loads)
        copies = [copy for load in loads for copy in load.copies]
        assert all(self.table.name_in(copy.slot) == copy.name for copy in copies)
        return [(copy.block_id, copy.name.block_hash) for copy in copies]

    def end(self, request_id: str = AHEAD, *, failed: bool = False) -> None:
        results = StoreResults(loaded=[request_id], failed=[request_id] if failed else [])
        self.half.copies_ended(results, (), ())
        self.table.check_invariants()


def name(number: int) -> BlockName:
    return BlockName(0, f"p{number}".encode())


def test_what_was_named_is_loaded_in_order_some_at_a_time() -> None:
    rig = AheadRig()
    rig.ahead(0, 1, 2)
    assert rig.half.pending, "an engine without requests makes steps for it"
    assert rig.load() == [(100, b"p0"), (101, b"p1")]
    assert rig.load() == [], "one load at a time"
    assert rig.half.pending
    rig.end()
    assert rig.pool.given_back == [{100: name(0), 101: name(1)}]
    assert rig.load() == [(102, b"p2")]
    rig.end()
    assert rig.half.pending, "the count is to be told"
    assert rig.step(made.output()).counts.ahead == 3
    assert (rig.pool.cached, rig.pool.free) == ({name(0), name(1), name(2)}, 16)
    assert not rig.half.pending


def test_a_block_that_is_larger_than_a_load_comes_alone() -> None:
    rig = AheadRig(block_bytes=LOAD_BYTES + 1)
    rig.ahead(0, 1)
    assert rig.load() == [(100, b"p0")]


def test_what_the_engine_has_or_the_store_lacks_is_passed_over() -> None:
    rig = AheadRig()
    rig.pool.cached.add(name(0))
    rig.ahead(0, 9, 1, 1, 2)
    assert rig.load() == [(100, b"p1"), (101, b"p2")]
    rig.ahead(0, 9)
    rig.end()
    assert rig.load() == []
    assert rig.pool.free == 16, "nothing is taken for nothing"
    rig.clock.advance(301)
    assert rig.step(made.output()).counts.held == 0, "no slot is kept"
    assert not rig.half.pending


def test_a_slot_is_kept_while_it_is_read() -> None:
    rig = AheadRig()
    rig.ahead(0)
    rig.load()
    rig.clock.advance(301)
    rig.step(made.output())
    assert rig.table.counts.held == 1, "the others have expired"
    rig.end()
    rig.clock.advance(301)
    rig.step(made.output())
    assert rig.table.counts.held == 0


def test_a_damaged_block_enters_no_cache() -> None:
    rig = AheadRig()
    rig.ahead(0, 1)
    rig.load()
    rig.end(failed=True)
    assert rig.pool.given_back == [{100: None, 101: None}]
    assert rig.table.counts.ahead == 0
    assert not rig.half.pending


def test_the_end_of_another_load_is_not_that_of_this_one() -> None:
    rig = AheadRig()
    rig.ahead(0)
    rig.load()
    rig.end("r#1")
    assert rig.pool.given_back == []
    assert rig.half.pending


@pytest.mark.parametrize(("free", "taken"), [(2 * FREE_PARTS, 2), (2 * FREE_PARTS - 1, 1)])
def test_most_of_the_free_blocks_stay_free(free: int, taken: int) -> None:
    rig = AheadRig(free=free)
    rig.ahead(0, 1, 2)
    assert len(rig.load()) == taken


def test_what_finds_no_room_is_not_loaded_later() -> None:
    """The stream is here by then, and loads it itself."""
    rig = AheadRig(free=FREE_PARTS - 1)
    rig.ahead(0, 1)
    assert rig.load() == []
    assert not rig.half.pending


def test_what_a_taken_block_held_is_not_saved_any_more() -> None:
    """As before any step that overwrites blocks."""
    rig = AheadRig()
    request = rig.add("a#0", 3 * BLOCK, prefix="other")
    plan = rig.new(request, [FIRST, FIRST + 1, 3], 3 * BLOCK)
    assert len(saved(plan)) == 3
    rig.half.finished(request, [], aborted=False)
    rig.ahead(0, 1)
    assert rig.step(made.output()).withdrawn == [FIRST, FIRST + 1]


def test_an_engine_whose_blocks_are_not_known_loads_nothing_ahead() -> None:
    rig = Rig()
    rig.store(1)
    rig.table.ahead.append(name(0))
    assert not rig.half.pending
    assert rig.step(made.output()).loads == []
