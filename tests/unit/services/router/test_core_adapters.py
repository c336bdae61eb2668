"""LoRA adapters through the whole core: who has one is asked, and orders reach every worker."""

from __future__ import annotations

from typing import Any

import pytest

from common.messages import (
    AdapterDone,
    AdapterStatus,
    AdapterTold,
    AskAdapter,
    Beat,
    Decode,
    Fleet,
    Load,
    OrderAdapter,
    Prefill,
    Refused,
    Role,
)
from services.router.events import AdapterOrdered
from services.router.placement.types import WaitFor
from services.router.records.adapters import AdapterOrder
from services.router.rules import moves
from tests.rigs.messages import worker_hello
from tests.unit.services.router.rig import Rig

SQL, LAW = "sql@1", "law@2"
PATH = "/srv/sql"


def has(rig: Rig, peer: str, *ids: str, resident: bool = True, load_ms: float = 0.0) -> None:
    held = tuple(
        AdapterStatus(id=one, path=PATH, resident=resident, load_ms=load_ms) for one in ids
    )
    rig.receive(peer, Beat(load=Load(), adapters=held))


def fleet(**settings: Any) -> Rig:
    """p0, p1, d0 and d1; only p1 and d1 have the adapter."""
    rig = Rig(policy="cost", **settings)
    rig.gateway()
    for name in ("p0", "p1"):
        rig.prefill(name)
    for name in ("d0", "d1"):
        rig.decode(name)
    has(rig, "p1|1", SQL)
    has(rig, "d1|1", SQL)
    return rig


def test_only_workers_that_have_it_get_the_request() -> None:
    rig = fleet()
    for n in range(4):
        rig.submit(f"r{n}", adapter=SQL)
        (order,) = rig.take(Prefill)
        assert (order.ticket.prefill, order.ticket.decode) == ("p1", "d1")
    assert len(rig.take(Decode, "d1|1")) == 4


def test_a_decode_worker_computes_it_where_no_prefill_worker_has_it() -> None:
    rig = fleet()
    has(rig, "p1|1")
    rig.submit("r1", adapter=SQL)
    assert not rig.take(Prefill)
    (order,) = rig.take(Decode, "d1|1")
    assert order.ticket is None
    placement = rig.known().placement
    assert placement is not None
    assert "no ready prefill worker has its adapter" in placement.sentence


def test_loading_costs_what_it_took() -> None:
    """d0 is empty, d1 has a request and the adapter in memory."""
    rig = fleet()
    has(rig, "d0|1", SQL, resident=False, load_ms=500.0)
    rig.submit("busy", prompt=16, adapter=SQL)
    assert rig.known("busy").decode == "d1|1"
    rig.submit("r1", adapter=SQL)
    assert rig.known("r1").decode == "d1|1", "loading takes longer than one stream slows it"
    has(rig, "d0|1", SQL)
    rig.submit("r2", adapter=SQL)
    assert rig.known("r2").decode == "d0|1"


def test_the_sentence_tells_what_loading_costs_once() -> None:
    rig = fleet()
    has(rig, "d1|1", SQL, resident=False)
    rig.submit("r1", adapter=SQL)
    placement = rig.known().placement
    assert placement is not None
    assert "200 ms to load its adapter" in placement.sentence
    rig.submit("r2", adapter=SQL)
    placement = rig.known("r2").placement
    assert placement is not None
    assert "to load its adapter" not in placement.sentence, "it will be in memory by then"


def test_one_that_nobody_has_is_refused_at_once() -> None:
    rig = fleet()
    rig.submit("r1", adapter=LAW)
    (refused,) = rig.take(Refused)
    assert refused.code == "no_capacity"
    assert "no decode worker has the adapter 'law'" in refused.message


def test_a_continued_request_waits_for_its_worker_and_not_for_ever() -> None:
    rig = fleet()
    rig.submit("r1", 2, adapter=LAW)
    assert rig.known("r1", 2).waits_for is WaitFor.ADAPTER
    rig.submit("r2")
    assert rig.known("r2").placement is not None, "others are not kept waiting by it"
    alive = ("p0|1", "p1|1", "d0|1", "d1|1", "g0|1")
    rig.tick(rig.core.shared.settings.admission.no_decode_wait_ms / 1000 + 1, alive=alive)
    (refused,) = rig.take(Refused)
    assert (refused.request_id, refused.code) == ("r1", "no_capacity")


def test_a_continued_request_is_placed_once_a_worker_has_it() -> None:
    rig = fleet()
    rig.submit("r1", 2, adapter=LAW)
    has(rig, "d0|1", LAW)
    assert rig.known("r1", 2).decode == "d0|1"


def test_a_full_holder_keeps_nobody_else_waiting() -> None:
    rig = fleet()
    for n in range(rig.row("d1|1").capacity.max_num_seqs):
        rig.submit(f"r{n}", prompt=16, adapter=SQL)
    rig.submit("waits", prompt=16, adapter=SQL)
    assert rig.known("waits").placement is None
    rig.submit("other", prompt=64)
    assert rig.known("other").decode == "d0|1"


def test_a_stream_moves_only_to_a_worker_that_has_its_adapter() -> None:
    rig = fleet()
    rig.submit("r1", adapter=SQL, resumable=True)
    rig.prefilled(peer="p1|1")
    rig.started(peer="d1|1")
    attempt, tables = rig.known(), rig.core.tables
    source, other = rig.row("d1|1"), rig.row("d0|1")
    assert not moves.takers(tables, attempt, source)
    assert moves.why_not_taken(tables, attempt, source, other) == "d0 has no adapter sql"
    has(rig, "d0|1", SQL)
    assert [view.name for view in moves.takers(tables, attempt, source)] == ["d0"]


def test_gateways_are_told_each_name_once_with_the_files_that_most_have() -> None:
    rig = fleet()
    rig.decode("d2")
    rig.sent.clear()
    has(rig, "d0|1", "sql@other")
    has(rig, "d2|1", SQL, LAW)
    told = rig.take(Fleet)[-1]
    assert [adapter.id for adapter in told.adapters] == [LAW, SQL]
    rig.take(Fleet)
    has(rig, "d2|1", SQL, LAW, resident=False)
    assert not rig.take(Fleet), "what is in memory concerns no gateway"


def test_an_order_goes_to_all_and_the_asker_is_told_when_all_have_done_it() -> None:
    rig = fleet()
    rig.sent.clear()
    rig.receive("g0|1", AskAdapter(ask_id=7, name="law", path="/srv/law"))
    assert len(rig.take(OrderAdapter)) == 4
    done = AdapterDone(name="law", path="/srv/law")
    for peer in ("p0|1", "p1|1", "d0|1"):
        has(rig, peer, LAW)
        rig.receive(peer, done)
        assert not rig.take(AdapterTold)
    rig.receive("d1|1", AdapterDone(name="law", path="/srv/law", error="it is damaged"))
    (told,) = rig.take(AdapterTold, "g0|1")
    assert (told.ask_id, told.code, told.message) == (7, "invalid_request", "d1: it is damaged")
    rig.receive("d1|1", done)
    assert not rig.take(AdapterTold), "once"


def test_what_all_workers_say_is_told_once() -> None:
    rig = fleet()
    rig.receive("g0|1", AskAdapter(ask_id=1, name="law", path="/srv/law"))
    for peer in ("p0|1", "d1|1", "p1|1"):
        rig.receive(peer, AdapterDone(name="law", path="/srv/law", error="its rank is 64"))
    rig.receive("d0|1", AdapterDone(name="law", path="/srv/law", error="it is damaged"))
    (told,) = rig.take(AdapterTold)
    assert told.message == "d0: it is damaged; d1, p0, p1: its rank is 64"


def test_of_many_workers_and_many_errors_some_are_named() -> None:
    order = AdapterOrder("law", "/srv/law", 0.0, {})
    order.errors = {f"d{at}": "it is damaged" for at in range(7)}
    assert order.sentence == "d0, d1, d2, d3, d4 and 2 more: it is damaged"
    order.errors |= {f"p{at}": f"fault {at}" for at in range(4)}
    assert order.sentence.endswith("; p0: fault 0; p1: fault 1; and 2 more workers")


def test_a_worker_that_dies_is_not_waited_for() -> None:
    rig = fleet()
    rig.receive("g0|1", AskAdapter(ask_id=1, name="law", path="/srv/law"))
    for peer in ("p0|1", "p1|1", "d0|1"):
        rig.receive(peer, AdapterDone(name="law", path="/srv/law"))
    rig.gone("d1|1")
    rig.tick(0.2, alive=("p0|1", "p1|1", "d0|1", "g0|1"))
    (told,) = rig.take(AdapterTold)
    assert told.message == "d1: it did not answer"


def test_who_joins_later_gets_the_orders_that_it_lacks() -> None:
    rig = fleet()
    rig.handle(AdapterOrdered("model", "law", "/srv/law"))
    for peer in ("p0|1", "p1|1", "d0|1", "d1|1"):
        has(rig, peer, LAW)
        rig.receive(peer, AdapterDone(name="law", path="/srv/law"))
    rig.handle(AdapterOrdered("model", "sql", ""))
    rig.sent.clear()
    rig.decode("d2")
    assert [(o.name, o.path) for o in rig.take(OrderAdapter, "d2|1")] == [("law", "/srv/law")]


def test_who_joins_with_what_was_let_go_is_told_so() -> None:
    rig = fleet()
    rig.handle(AdapterOrdered("model", "law", "/srv/law"))
    for peer in ("p0|1", "p1|1", "d0|1", "d1|1"):
        has(rig, peer, LAW, SQL)
        rig.receive(peer, AdapterDone(name="law", path="/srv/law"))
    rig.handle(AdapterOrdered("model", "sql"))
    rig.sent.clear()
    rig.receive("d2|1", worker_hello(Role.DECODE, "d2"))
    has(rig, "d2|1", LAW, SQL)
    assert [(o.name, o.path) for o in rig.take(OrderAdapter, "d2|1")] == [("sql", "")]


def test_what_no_worker_could_do_is_not_asked_of_the_next_one() -> None:
    rig = fleet()
    rig.handle(AdapterOrdered("model", "law", "/srv/law"))
    for peer in ("p0|1", "p1|1", "d0|1", "d1|1"):
        rig.receive(peer, AdapterDone(name="law", path="/srv/law", error="it is damaged"))
    rig.sent.clear()
    rig.decode("d2")
    assert not rig.take(OrderAdapter)


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (AskAdapter(ask_id=1, name="a@b", path="/x"), "invalid_request"),
        (AskAdapter(ask_id=1, name="nobody-has-it"), "not_found"),
        (AskAdapter(ask_id=1, name="x", path="/x", model="other"), "invalid_request"),
    ],
)
def test_orders_that_make_no_sense_are_answered_at_once(ask: AskAdapter, code: str) -> None:
    rig = fleet()
    rig.receive("g0|1", ask)
    (told,) = rig.take(AdapterTold)
    assert told.code == code
    assert not rig.take(OrderAdapter)
