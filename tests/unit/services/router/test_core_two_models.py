"""Two models in one fleet: what is placed, queued, refused, learned or shown is of one model."""

from __future__ import annotations

from typing import Any

import pytest

from common.messages import (
    Decode,
    Ended,
    Fleet,
    HeldAttempt,
    Hello,
    Holding,
    Introduce,
    Leg,
    Placed,
    Prefill,
    PrefixDelta,
    Refused,
    RequestSummary,
    Role,
    Welcome,
)
from common.net.admin_rows import WorkerRow
from services.router.admin.verb import View
from services.router.admin.verbs import keys, requests, status, workers
from services.router.events import DrainExpired, DrainStarted, LimitsChosen, PolicyChosen
from services.router.metrics.router import RouterMetrics
from services.router.tables import Tables
from tests.rigs.messages import worker_hello
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.scraped import scraped

NAMES = ("chat", "code")
WEIGHTS = {"model": "m", "weights": "w1"}


def two(**settings: Any) -> Rig:
    """1P + 1D of each model, of one fingerprint, so that only the model keeps them apart."""
    rig = Rig(models=NAMES, **settings)
    rig.gateway()
    for name in NAMES:
        rig.prefill(f"p-{name}", model=name)
        rig.decode(f"d-{name}", model=name)
    rig.sent.clear()
    return rig


def tables(rig: Rig, model: str) -> Tables:
    return rig.core.shared.models[model]


def view(rig: Rig) -> View:
    return View(rig.core.shared, rig.now, {})


def rows(rig: Rig) -> dict[str, WorkerRow]:
    return {row.name: row for row in workers.run(view(rig), {"role": ""})}


def serve(rig: Rig, request_id: str, model: str) -> None:
    rig.submit(request_id, model=model)
    rig.now += 0.5
    rig.prefilled(request_id, peer=f"p-{model}|1")
    rig.started(request_id, peer=f"d-{model}|1")
    rig.now += 0.5
    rig.ended(request_id, peer=f"d-{model}|1")


@pytest.mark.parametrize("model", NAMES)
def test_a_request_is_placed_on_workers_of_its_model(model: str) -> None:
    rig = two()
    rig.submit(model=model)
    assert [send.peer for send in rig.sent if isinstance(send.message, Prefill | Decode)] == [
        f"p-{model}|1",
        f"d-{model}|1",
    ]
    (placed,) = rig.take(Placed)
    assert (placed.prefill, placed.decode) == (f"p-{model}", f"d-{model}")


def test_a_model_without_prefill_workers_takes_none_of_the_other() -> None:
    rig = Rig(models=NAMES)
    rig.gateway()
    rig.prefill("p-chat", model="chat")
    rig.decode("d-code", model="code")
    assert not rig.take(Introduce)
    rig.submit(model="code")
    (placed,) = rig.take(Placed)
    assert placed.prefill == ""


def test_workers_of_one_model_are_introduced_to_each_other_only() -> None:
    rig = two()
    rig.decode("d1", model="chat")
    others = [rig.row(name).kv_address for name in ("p-chat|1", "d-chat|1")]
    assert [message.kv_address for message in rig.take(Introduce, "d1|1")] == others


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("nope", "no model 'nope'; there are: chat, code"),
        ("", "name a model; there are: chat, code"),
    ],
)
def test_a_model_that_nobody_knows_is_refused_with_the_names(model: str, says: str) -> None:
    rig = two()
    rig.submit(model=model)
    (refused,) = rig.take(Refused)
    assert (refused.code, refused.message, refused.retry_after_ms) == ("model_not_found", says, 0)
    assert not rig.core.queued


def test_a_fleet_with_one_model_needs_no_name() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode()
    rig.submit()
    assert rig.take(Placed)
    rig.submit("s", model="nope")
    assert rig.take(Refused)[0].message == "no model 'nope'; there are: model"


def test_a_model_without_workers_is_refused_in_time_and_the_other_goes_on() -> None:
    rig = Rig(models=NAMES)
    rig.gateway()
    rig.decode("d-chat", model="chat")
    rig.submit("lost", model="code")
    rig.submit("fine", model="chat")
    assert rig.state("fine") == "placed"
    rig.tick(10.2, alive=("d-chat|1", "g0|1"))
    assert [refused.code for refused in rig.take(Refused)] == ["no_capacity"]
    rig.submit("late", model="code")
    assert rig.take(Refused)[0].code == "no_capacity"


def test_a_request_id_that_runs_with_another_model_is_refused() -> None:
    rig = two()
    rig.submit("r", model="chat")
    rig.submit("r", model="code")
    assert rig.take(Refused)[0].code == "duplicate_request"
    assert rig.core.shared.counts.submitted == 1


def test_what_two_workers_of_two_models_hold_under_one_id_is_adopted_once() -> None:
    rig = two()
    for name in NAMES:
        held = HeldAttempt("r", 1, 40, 8, f"d-{name}|1", "", "g0|1", started=True)
        rig.receive(f"d-{name}|1", Holding(attempts=(held,)))
    assert list(tables(rig, "chat").attempts) == [("r", 1)]
    assert not tables(rig, "code").attempts


def test_a_full_queue_of_one_model_does_not_refuse_the_other() -> None:
    rig = two(max_queue=2, max_active=1)
    for number in range(4):
        rig.submit(f"a{number}", model="chat")
    assert [refused.code for refused in rig.take(Refused)] == ["queue_full"]
    rig.submit("b0", model="code")
    rig.submit("b1", model="code")
    assert rig.core.shared.counts.refused_of_model == {("chat", "queue_full"): 1}
    assert (rig.state("b0"), rig.state("b1")) == ("placed", "queued")
    assert not rig.take(Refused)


def test_a_request_that_waits_preempts_nobody_of_the_other_model() -> None:
    rig = two(max_queue=9)
    rig.submit("left", model="code", abandoned=True, resumable=True)
    for number in range(9):
        rig.submit(f"a{number}", model="chat")
    assert rig.state("a8") == "queued"
    rig.tick()
    assert rig.state("left") == "placed"


def test_nothing_that_is_learned_of_one_model_is_used_for_the_other() -> None:
    rig = two(prefixes=True)
    code = tables(rig, "code")
    before = code.estimates.summary()
    for number in range(20):
        serve(rig, f"a{number}", "chat")
    rig.receive("d-chat|1", PrefixDelta(stored=b"12345678"))
    rig.submit("held", model="chat", prefix_hashes=b"abcdefgh")
    assert code.estimates.summary() == before != tables(rig, "chat").estimates.summary()
    assert code.drain_rate.per_second(rig.now) is None
    assert not len(code.placement_memory.prefixes)
    assert len(tables(rig, "chat").placement_memory.prefixes)
    assert code.placement_memory.serial == 0


def test_a_pool_that_loses_workers_is_that_of_one_model() -> None:
    """A third of a pool may be ejected: of one model with one decode worker that is the one."""
    rig = two()
    rig.decode("d1", model="code")
    rig.tick(5.0, alive=("g0|1", "p-chat|1", "p-code|1"))
    ejected = [w.name for w in rig.core.shared.workers() if w.state.value == "ejected"]
    assert sorted(ejected) == ["d-chat", "d-code"]


def test_gateways_are_told_of_each_model() -> None:
    rig = two()
    rig.gateway("g1")
    fleets = {fleet.model: fleet for fleet in rig.take(Fleet, "g1|1")}
    assert {name: fleet.ready for name, fleet in fleets.items()} == dict.fromkeys(NAMES, True)
    rig.gone("d-chat|1")
    (changed,) = rig.take(Fleet, "g1|1")
    assert (changed.model, changed.ready) == ("chat", False)


def test_a_router_that_stops_refuses_what_waits_of_all_models() -> None:
    rig = two(max_active=1)
    for name in NAMES:
        rig.submit(f"{name}1", model=name)
        rig.submit(f"{name}2", model=name)
    rig.handle(DrainStarted())
    rig.handle(DrainExpired())
    refused = rig.take(Refused)
    assert [(r.request_id, r.code) for r in refused] == [
        ("chat2", "draining"),
        ("code2", "draining"),
    ]


def test_an_operator_sets_limits_and_policy_of_all_models() -> None:
    rig = two()
    limits = tables(rig, "chat").limits
    rig.handle(LimitsChosen(limits))
    rig.handle(PolicyChosen("round_robin", "never"))
    assert [tables(rig, name).placement_memory.policy.NAME for name in NAMES] == [
        "round_robin",
        "round_robin",
    ]
    assert all(tables(rig, name).placement_memory.all_local for name in NAMES)


# ------------------------------------------------------------ who is refused


def greets(rig: Rig, hello: Hello) -> str:
    """Why it is refused; empty = it is welcomed."""
    peer = f"{hello.name}|{hello.incarnation}"
    rig.sent.clear()
    rig.receive(peer, hello)
    refused = rig.take(Refused, peer)
    assert len(refused) + len(rig.take(Welcome, peer)) == 1
    return refused[0].message if refused else ""


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_worker_of_a_model_that_the_file_does_not_have_is_refused_and_named(role: Role) -> None:
    rig = two()
    says = greets(rig, worker_hello(role, "x", model="nope"))
    assert says == f"{role} x serves the model 'nope'; this fleet's file has chat, code"
    row = rows(rig)["x"]
    assert (row.state, row.model, row.reason) == ("refused", "nope", says)


def test_a_decode_worker_of_one_name_and_other_weights_is_refused_and_named() -> None:
    rig = two()
    rig.gone("d-chat|1")
    rig.decode("d0", model="chat", fingerprint_parts=WEIGHTS)
    other = worker_hello(
        Role.DECODE, "d1", model="chat", fingerprint_parts=WEIGHTS | {"weights": "w2"}
    )
    assert greets(rig, other) == "decode d1 has another model than d0: weights w1 ≠ w2"
    assert rows(rig)["d1"].state == "refused"
    assert greets(rig, worker_hello(Role.DECODE, "d1", "2", model="code")) == ""
    assert rows(rig)["d1"].state == "joining"


def test_a_prefill_worker_of_other_weights_is_never_paired_and_named() -> None:
    rig = Rig(models=NAMES)
    rig.gateway()
    rig.decode("d0", model="chat", fingerprint_parts=WEIGHTS, fingerprint="f1")
    other = WEIGHTS | {"weights": "w2"}
    rig.prefill("p0", model="chat", fingerprint_parts=other, fingerprint="f2")
    rig.submit(model="chat")
    assert rig.take(Placed)[0].prefill == ""
    assert rows(rig)["p0"].unlike == "unlike d0, weights w2 ≠ w1"
    rig.prefill("p1", model="chat", fingerprint_parts=WEIGHTS, fingerprint="f1")
    assert (rows(rig)["p1"].unlike, rows(rig)["d0"].unlike) == ("", "")


def test_an_incarnation_does_not_change_its_model() -> None:
    rig = two()
    says = greets(rig, worker_hello(Role.DECODE, "d-chat", model="code"))
    assert says == "decode d-chat served chat before, and now code"
    assert rig.row("d-chat|1").model == "chat"


def test_a_worker_that_comes_back_with_another_model_leaves_nothing_behind() -> None:
    rig = two()
    rig.submit("r", model="chat")
    rig.decode("d-chat", "2", model="code")
    assert rig.state("r") == "failed"
    assert list(tables(rig, "chat").workers) == ["p-chat|1"]
    assert rig.row("d-chat|2").model == "code"
    rig.receive("d-chat|1", Ended(request_id="r", attempt=1))
    assert rig.core.shared.counts.dropped["before hello"] == 1


def test_the_table_of_refused_workers_is_bounded() -> None:
    rig = two()
    for number in range(70):
        greets(rig, worker_hello(Role.DECODE, f"x{number}", model="n" * 999))
    assert len(rig.core.shared.refused) == 64
    assert len(rows(rig)["x69"].model) == 64


# ------------------------------------------------------------ what is shown


def test_rows_metrics_and_status_are_by_model() -> None:
    rig = two(max_active=1)
    for name in NAMES:
        rig.submit(f"{name}1", model=name, key_id=name)
    rig.submit("code2", model="code", key_id="code")
    told = status.run(view(rig), {})
    assert (told.ready, told.model, told.active, told.queued) == (True, "chat, code", 2, 1)
    assert (told.prefill_ready, told.decode_ready) == (2, 2)
    assert [(m.model, m.active, m.queued) for m in told.models] == [("chat", 1, 0), ("code", 1, 1)]
    found = requests.run(view(rig), {"queue": False, "state": "", "limit": 9})
    assert {row.request_id: row.model for row in found} == {
        "chat1": "chat",
        "code1": "code",
        "code2": "code",
    }
    (queued,) = requests.run(view(rig), {"queue": True, "state": "", "limit": 9})
    assert (queued.request_id, queued.model) == ("code2", "code")
    assert {row["key_id"]: row["queued"] for row in keys.run(view(rig), {"limit": 9})} == {
        "chat": 0,
        "code": 1,
    }
    lines = scraped(RouterMetrics(lambda: view(rig)).collect()).splitlines()
    assert 'baton_router_model_queue_requests{model="code"} 1.0' in lines
    assert 'baton_router_model_workers_ready{model="chat",role="decode"} 1.0' in lines
    assert "baton_router_queue_requests 1.0" in lines


def test_traffic_and_use_are_measured_by_model() -> None:
    rig = two()
    serve(rig, "r", "chat")
    legs = (Leg("decode", 1, 200.0),)
    summary = RequestSummary(
        request_id="r", attempt=1, outcome="ended", legs=legs, completion_tokens=8
    )
    rig.receive("g0|1", summary)
    rig.submit("s", model="code")
    rig.tick(1.0, alive=("g0|1", *(f"{role}-{name}|1" for role in "pd" for name in NAMES)))
    rig.submit("lost", model="x" * 99)
    lines = scraped(RouterMetrics(lambda: view(rig)).collect()).splitlines()
    for line in (
        'baton_router_model_requests_refused_total{code="model_not_found",model=""} 1.0',
        'baton_router_degraded{cause="recomputed",model="code"} 0.0',
        'baton_router_tokens_total{model="chat",phase="prefill"} 40.0',
        'baton_router_tokens_total{model="chat",phase="decode"} 8.0',
        'baton_router_tokens_total{model="code",phase="prefill"} 0.0',
        'baton_router_phase_seconds_count{model="chat",phase="decode"} 1.0',
        'baton_router_utilisation_ratio{model="chat",phase="prefill"} 0.0',
        'baton_router_utilisation_ratio{model="code",phase="prefill"} 1.0',
        'baton_router_worker_kv_used_ratio{model="code",role="decode",worker="d-code"} 0.001',
    ):
        assert line in lines, line


def test_one_model_that_is_lost_leaves_the_fleet_ready() -> None:
    rig = two()
    rig.gone("d-chat|1")
    told = status.run(view(rig), {})
    assert (told.ready, [model.ready for model in told.models]) == (True, [False, True])
