"""A running stream gets another holder, and where it goes on, the store has its beginning and the
ticket brings the rest."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from common.engine.connector.metadata import Fetch, StepPlan, StoreLoad, StorePlan, to_params
from common.engine.connector.worker import WorkerHalf
from common.errors import Code
from common.kv.service import KvService
from common.kv.store.results import StoreResults
from common.kv.store.table import BlockCopy, BlockName
from tests.rigs.messages import ticket
from tests.unit.common.engine.connector import test_scheduler as made
from tests.unit.common.engine.connector.test_checkpoint import (
    HOLDER,
    KEY,
    CopyRig,
    names,
    offered,
)
from tests.unit.common.engine.connector.test_store import BLOCK, Rig
from tests.unit.common.engine.connector.test_worker import FakeService, FakeStore

OTHER = msgspec.structs.replace(HOLDER, name="d3")
GONE_ON = 4 * BLOCK + 3


def change(rig: CopyRig, holder: Any, key: Any = KEY) -> None:
    rig.half.copies_ended(StoreResults(holders={key: holder}), (), ())


def running(rig: CopyRig) -> Any:
    """A stream of three full blocks, which the store has, and the first holder was offered."""
    request = rig.stream(48)
    rig.done(rig.new(request, [3, 4, 5], 48))
    assert offered(rig.idle(request, 48)) == [(b"p0p1p2", names(3), 3)]
    return request


def test_another_holder_is_offered_the_whole_stream() -> None:
    rig = CopyRig()
    request = running(rig)
    change(rig, OTHER)
    plan = rig.idle(request, 49)
    assert [offer.holder for offer in plan.offers] == [OTHER]
    assert offered(plan) == [(b"p0p1p2", names(3), 3)]
    assert plan.ended_offers == [], "the KV thread would forget the new one with the old one"


def test_the_same_holder_goes_on_where_it_was() -> None:
    rig = CopyRig()
    request = running(rig)
    change(rig, HOLDER)
    assert rig.idle(request, 49).offers == []


def test_a_stream_without_a_holder_gets_one() -> None:
    rig = CopyRig()
    request = rig.stream(48, holder=msgspec.structs.replace(HOLDER, fingerprint="of others"))
    rig.done(rig.new(request, [3, 4, 5], 48))
    assert rig.idle(request, 48).offers == []
    change(rig, HOLDER)
    assert offered(rig.idle(request, 49)) == [(b"p0p1p2", names(3), 3)]


def test_nobody_gets_any_more() -> None:
    rig = CopyRig()
    request = running(rig)
    change(rig, None)
    request.block_hashes.append(b"g3")
    plan = rig.more(request, [6], 49, 15)
    assert plan.ended_offers == [KEY]
    rig.done(plan)
    assert rig.idle(request, 64).offers == []
    change(rig, None)
    assert rig.idle(request, 64).ended_offers == []


def test_a_holder_of_another_fingerprint_gets_nothing() -> None:
    rig = CopyRig()
    request = running(rig)
    change(rig, msgspec.structs.replace(OTHER, fingerprint="of others"))
    assert rig.idle(request, 49).offers == []


def test_of_a_stream_that_is_over_nothing_is_followed() -> None:
    rig = CopyRig()
    request = running(rig)
    rig.half.finished(request, [[3, 4, 5]], aborted=True)
    rig.step(made.output())
    change(rig, OTHER)
    assert rig.half.pending
    assert rig.step(made.output()).ended_offers == [KEY]


class Arriving(Rig):
    """A stream of four full blocks and three tokens goes on here."""

    def arrive(self, *, goes_on: bool = True, canonical: bool = False) -> Any:
        request = self.add("r#0", GONE_ON)
        given = ticket("r", canonical=canonical)
        request.kv_transfer_params = to_params("receive", given, GONE_ON - 1, goes_on=goes_on)
        self.half.new_request(request)
        return request

    def load(self, request: Any, ids: list[int], cached: int = 0) -> StepPlan:
        claimed = self.half.matched_tokens(request, cached * BLOCK)
        assert claimed == GONE_ON - 1 - cached * BLOCK, "the whole is claimed once"
        self.half.allocated(request, made.blocks(ids, shared=cached), claimed)
        return self.half.step(made.output())

    def end(self, results: StoreResults, *, failed: bool = False) -> None:
        self.half.copies_ended(results, ["r#0"], ["r#0"] if failed else [])
        self.table.check_invariants()


def loads(plan: StepPlan) -> list[tuple[int, bytes]]:
    assert plan.store is not None
    return [
        (copy.block_id, copy.name.block_hash) for load in plan.store.loads for copy in load.copies
    ]


def fetched(plan: StepPlan) -> tuple[int, list[int]]:
    (fetch,) = plan.fetches
    return fetch.first_block, fetch.block_ids


@pytest.mark.parametrize("stored", [0, 1, 3, 4])
def test_the_store_loads_what_it_has_and_the_ticket_brings_the_rest(stored: int) -> None:
    rig = Arriving()
    if stored:
        rig.store(stored)
    plan = rig.load(rig.arrive(), [11, 12, 13, 14, 15])
    ids = [11, 12, 13, 14, 15]
    assert loads(plan) == [(ids[at], f"p{at}".encode()) for at in range(stored)]
    assert fetched(plan) == (stored, ids[stored:])


def test_what_the_engine_has_is_neither_loaded_nor_brought() -> None:
    rig = Arriving()
    rig.store(3)
    plan = rig.load(rig.arrive(), [7, 8, 13, 14, 15], cached=2)
    assert loads(plan) == [(13, b"p2")]
    assert fetched(plan) == (3, [14, 15])


def test_the_ticket_always_brings_the_last_block() -> None:
    """Its report says whether the stream moved."""
    rig = Arriving()
    rig.store(4)
    request = rig.add("r#0", 4 * BLOCK + 1)
    request.kv_transfer_params = to_params("receive", ticket("r"), 4 * BLOCK, goes_on=True)
    rig.half.new_request(request)
    rig.half.matched_tokens(request, 0)
    rig.half.allocated(request, made.blocks([11, 12, 13, 14]), 4 * BLOCK)
    assert fetched(rig.half.step(made.output())) == (3, [14])


def test_a_new_prompt_comes_with_its_ticket_alone() -> None:
    rig = Arriving()
    rig.store(4)
    plan = rig.load(rig.arrive(goes_on=False), [11, 12, 13, 14, 15])
    assert (loads(plan), fetched(plan)) == ([], (0, [11, 12, 13, 14, 15]))


def test_a_canonical_ticket_brings_all_of_it() -> None:
    """The store counts in blocks of another size."""
    rig = Arriving()
    rig.store(4)
    plan = rig.load(rig.arrive(canonical=True), [11, 12, 13, 14, 15])
    assert (loads(plan), fetched(plan)) == ([], (0, [11, 12, 13, 14, 15]))


def test_the_slots_are_kept_until_both_have_ended() -> None:
    rig = Arriving()
    rig.store(2)
    rig.load(rig.arrive(), [11, 12, 13, 14, 15])
    assert rig.table.begin_write(BlockName(0, b"x")) is not None
    for at in range(20):
        rig.table.begin_write(BlockName(0, f"y{at}".encode()))
    assert len(rig.table.find([BlockName(0, b"p0"), BlockName(0, b"p1")], 0.0)) == 2
    rig.end(StoreResults(loaded=["r#0"]))
    assert rig.table.begin_write(BlockName(0, b"z")) is not None, "they may go now"


def test_where_the_ticket_fails_the_store_has_its_part_still() -> None:
    rig = Arriving()
    rig.store(2)
    request = rig.arrive()
    rig.load(request, [11, 12, 13, 14, 15])
    rig.end(StoreResults(loaded=["r#0"]), failed=True)
    assert rig.half.matched_tokens(request, 0) == 2 * BLOCK


def test_where_the_store_fails_all_is_computed() -> None:
    rig = Arriving()
    rig.store(2)
    request = rig.arrive()
    rig.load(request, [11, 12, 13, 14, 15])
    rig.end(StoreResults(loaded=["r#0"], failed=["r#0"]), failed=True)
    assert rig.half.matched_tokens(request, 0) == 0


class Loading:
    """The worker half, with a load whose beginning the store has."""

    def __init__(self) -> None:
        self.service = FakeService()
        self.store = self.service.store = FakeStore(self.service.calls)
        self.half = WorkerHalf(cast("KvService", self.service), lambda: None, None)
        copies = [BlockCopy(1, 11, BlockName(0, b"p0"))]
        plan = StepPlan(
            fetches=[Fetch(ticket("r", 0), 1, [12])],
            store=StorePlan(loads=[StoreLoad("r#0", copies)]),
        )
        self.half.load(plan)

    def results(self, *, stored: str = "", brought: str = "") -> tuple[set[str], set[str]]:
        """What vLLM is told when these have ended: `ok`, `failed`, or not yet."""
        if stored:
            self.store.results.loaded.append("r#0")
            self.store.results.failed += ["r#0"] if stored == "failed" else []
        if brought:
            self.service.end("receive", Code.KV_TRANSFER_FAILED if brought == "failed" else "")
        _, received, failed = self.half.results(StepPlan(), ())
        return received, failed


@pytest.mark.parametrize("stored", ["ok", "failed"])
@pytest.mark.parametrize("brought", ["ok", "failed"])
@pytest.mark.parametrize("order", ["store first", "ticket first", "together"])
def test_a_load_of_two_parts_ends_once_and_fails_with_either(
    order: str, stored: str, brought: str
) -> None:
    rig = Loading()
    assert rig.results() == (set(), set())
    if order == "store first":
        assert rig.results(stored=stored) == (set(), set()), "blocks are written to still"
        told = rig.results(brought=brought)
    elif order == "ticket first":
        assert rig.results(brought=brought) == (set(), set()), "blocks are written to still"
        told = rig.results(stored=stored)
    else:
        told = rig.results(stored=stored, brought=brought)
    failed = {"r#0"} if "failed" in (stored, brought) else set()
    assert told == ({"r#0"}, failed)
    assert rig.results() == (set(), set())


def test_a_second_load_of_the_store_alone_ends_by_itself() -> None:
    rig = Loading()
    rig.results(stored="ok", brought="failed")
    copies = [BlockCopy(1, 11, BlockName(0, b"p0"))]
    rig.half.load(StepPlan(store=StorePlan(loads=[StoreLoad("r#0", copies)])))
    assert rig.results(stored="ok") == ({"r#0"}, set())


def test_a_holder_where_the_stream_is_to_go_on_is_offered_it_again() -> None:
    """It had no cause to give its engine what it has."""
    rig = CopyRig()
    request = running(rig)
    goes_on = msgspec.structs.replace(HOLDER, goes_on=True)
    change(rig, goes_on)
    plan = rig.idle(request, 49)
    assert [offer.holder for offer in plan.offers] == [goes_on]
    assert offered(plan) == [(b"p0p1p2", names(3), 3)]
