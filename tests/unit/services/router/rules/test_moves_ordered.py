"""An operator moves one stream: what is refused and why, and where the stream goes."""

from __future__ import annotations

from typing import Any

import pytest

from common.blocks import Kept, KvGroup
from common.errors import BatonError, Code
from common.messages import (
    Decode,
    HandOver,
    Introduce,
    KvReport,
    Leg,
    Load,
    Move,
    RequestSummary,
)
from services.router.admin.verb import View
from services.router.metrics.router import RouterMetrics
from services.router.placement.pair_breaker import STRIKES
from services.router.records.move import MoveOutcome, MoveReason
from services.router.rules.moves import CONNECT_SECONDS, INTRODUCED_SECONDS, LOST_SECONDS
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import MOVED, Rig
from tests.unit.services.router.rules.test_moves import ALL, D0, D1, fleet, give_up, submit_next
from tests.unit.services.router.scraped import scraped

D2 = "d2|1"
LATER = CONNECT_SECONDS + 0.1


def told(rig: Rig) -> list[tuple[str, str]]:
    return [(move.request_id, move.reason) for move in rig.take(Move, D0)]


def counted(rig: Rig) -> dict[tuple[str, str], int]:
    moves = rig.core.tables.counts.moves
    return {(reason.value, outcome.value): count for (reason, outcome), count in moves.items()}


def three(**more: Any) -> Rig:
    """`r0` streams on d0; d1 and d2 have room."""
    rig = fleet(**more)
    rig.beat(rig.decode("d2", **more.get("d2", {})), Load())
    rig.sent.clear()
    return rig


@pytest.mark.parametrize("to", ["d1", "d2"])
def test_a_stream_goes_to_the_worker_that_is_named(to: str) -> None:
    rig = three()
    answer = ask(rig, "move", request="r0", to=to)
    assert (answer["from"], answer["to"], answer["attempt"]) == ("d0", to, 1)
    assert told(rig) == [], "it connects first"
    assert [i.kv_address for i in rig.take(Introduce, f"{to}|1")] == [rig.row(D0).kv_address]
    rig.tick(LATER)
    assert told(rig) == [("r0", f"an operator moves this stream to {to}")]
    give_up(rig)
    assert rig.known("r0", 2).decode == f"{to}|1"
    (order,) = rig.take(HandOver, D0)
    assert order.ticket.decode == to
    assert rig.take(Move) == []


def test_without_a_name_the_policy_chooses() -> None:
    rig = three()
    answer = ask(rig, "move", request="r0")
    assert (answer["to"], sorted(answer["could_go_to"])) == ("", ["d1", "d2"])
    rig.tick(LATER)
    give_up(rig)
    assert rig.known("r0", 2).decode in (D1, D2)


def test_workers_that_are_connected_lose_no_time() -> None:
    rig = fleet(2)
    ask(rig, "move", request="r0", to="d1")
    rig.tick(LATER)
    rig.sent.clear()
    ask(rig, "move", request="r1", to="d1")
    assert [request for request, _ in told(rig)] == ["r1"]
    assert len(rig.take(Introduce, D1)) == 1, "the connection may be gone"


def test_a_connection_of_long_ago_is_not_relied_on() -> None:
    rig = fleet(2)
    ask(rig, "move", request="r0", to="d1")
    rig.tick(INTRODUCED_SECONDS + 1, alive=ALL)
    rig.sent.clear()
    ask(rig, "move", request="r1", to="d1")
    assert told(rig) == []


def test_where_the_worker_has_no_room_any_more_the_stream_goes_on_and_says_why() -> None:
    rig = three()
    ask(rig, "move", request="r0", to="d1")
    rig.tick(LATER)
    ask(rig, "drain", worker="d1")
    give_up(rig)
    attempt = rig.known("r0", 2)
    assert attempt.decode == D2
    assert attempt.placement is not None
    sentence = "not where it was to go: d1 is drained and gets nothing new"
    assert sentence in attempt.placement.sentence
    assert len(rig.take(HandOver, D0)) == 1, "its KV is taken along nevertheless"


def test_where_the_worker_is_gone_it_says_so() -> None:
    rig = three()
    ask(rig, "move", request="r0", to="d1")
    rig.tick(LATER)
    rig.gone(D1)
    give_up(rig)
    placement = rig.known("r0", 2).placement
    assert placement is not None
    assert "d1 is gone and gets nothing new" in placement.sentence


def test_where_nobody_may_hand_over_to_the_worker_it_says_so() -> None:
    """Its KV is not kept any more, so that it is computed by a prefill worker, of which one has
    room."""
    rig = three()
    rig.beat(rig.prefill("p1", seqs=1), Load())
    ask(rig, "move", request="r0", to="d1")
    rig.tick(LATER)
    rig.ended("r0", error=Code.MOVED)
    rig.tick(rig.core.tables.settings.keep_seconds, alive=(*ALL, D2, "p1|1"))
    rig.core.tables.placement_memory.set_options("cost", "always")
    for other in ("q0", "q1"):
        rig.submit(other)
    assert {rig.known("q0").prefill, rig.known("q1").prefill} == {"p0|1", "p1|1"}
    for failed in range(STRIKES):
        pairs = rig.core.tables.placement_memory.pairs
        pairs.record_failure(("p0|1", D1), (f"f{failed}", 1), "transport", "", rig.now)
    submit_next(rig)
    attempt = rig.known("r0", 2)
    assert (attempt.prefill, attempt.decode) == ("p0|1", D2)
    assert attempt.placement is not None
    sentence = "not where it was to go: no worker that has room may hand KV over to d1 now"
    assert sentence in attempt.placement.sentence


def test_where_nobody_has_room_any_more_it_is_not_interrupted() -> None:
    rig = fleet()
    ask(rig, "move", request="r0", to="d1")
    rig.gone(D1)
    rig.tick(LATER)
    assert told(rig) == []
    assert rig.state("r0") == "decoding"
    rig.beat(rig.decode("d2"), Load())
    assert ask(rig, "move", request="r0")["could_go_to"] == ["d2"], "it may be ordered again"


def test_a_stream_for_which_nobody_has_room_any_more_goes_back_to_its_worker() -> None:
    rig = fleet()
    rig.gone(D1)
    rig.beat(rig.decode("d2", blocks=8), Load())
    ask(rig, "move", request="r0", to="d2")
    rig.tick(LATER)
    ask(rig, "drain", worker="d0")
    rig.submit("q", prompt=80)
    assert rig.known("q").decode == D2
    ask(rig, "resume", worker="d0")
    give_up(rig)
    attempt = rig.known("r0", 2)
    assert attempt.decode == D0
    assert rig.take(HandOver) == []
    assert attempt.placement is not None
    assert "not where it was to go: d2 has 16 KV tokens free, and it needs 48" in (
        attempt.placement.sentence
    )


def test_an_order_that_was_lost_is_given_again() -> None:
    rig = fleet()
    ask(rig, "move", request="r0", to="d1")
    rig.tick(LATER)
    rig.sent.clear()
    rig.tick(LOST_SECONDS - 0.5, alive=ALL)
    with pytest.raises(BatonError, match="on its way already"):
        ask(rig, "move", request="r0")
    rig.tick(1.0, alive=ALL)
    ask(rig, "move", request="r0")
    assert len(told(rig)) == 1


def test_an_order_for_what_ended_meanwhile_is_forgotten() -> None:
    rig = fleet()
    ask(rig, "move", request="r0", to="d1")
    rig.ended("r0")
    rig.tick(LATER)
    assert told(rig) == []
    assert not rig.core.tables.leaving
    assert counted(rig) == {}


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("unknown", "no request 'r0' is queued or running"),
        ("placed", "it has no token yet"),
        ("aborting", "it is being ended"),
        ("not resumable", "its gateway cannot continue it elsewhere exactly"),
        ("groups", "some layers of its model keep a part of the tokens only"),
        ("trial", "its prompt is suspected to kill workers"),
        ("suspect", "d0, where it runs, is suspect: silent for"),
        ("alone", "no other decode worker can take it: d0 is the only decode worker"),
    ],
)
def test_what_cannot_move_says_why(case: str, says: str) -> None:
    groups = (KvGroup(16, Kept.WINDOW, 20),) if case == "groups" else ()
    streams = 0 if case in ("unknown", "placed") else 1
    rig = fleet(streams, resumable=case != "not resumable", groups=groups)
    if case == "placed":
        rig.submit("r0", resumable=True)
    if case == "aborting":
        rig.cancel("r0")
    if case == "trial":
        rig.known("r0").trial = True
    if case == "suspect":
        rig.tick(2.0, alive=("g0|1", D1))
    if case == "alone":
        rig.gone(D1)
    with pytest.raises(BatonError, match=says) as error:
        ask(rig, "move", request="r0")
    assert error.value.code == ("not_found" if case == "unknown" else "invalid_request")
    rig.tick(LATER)
    assert told(rig) == []


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("nope", "no worker 'nope'; there are: d0, d1, p0"),
        ("p0", "p0 is a prefill worker"),
        ("d0", "it runs on d0"),
        ("d1", "d1 is drained and gets nothing new"),
    ],
)
def test_an_unfit_target_says_why(to: str, says: str) -> None:
    rig = fleet()
    if to == "d1":
        ask(rig, "drain", worker="d1")
    with pytest.raises(BatonError, match=says):
        ask(rig, "move", request="r0", to=to)


@pytest.mark.parametrize(
    ("of_d2", "says"),
    [
        ({"fingerprint": "other"}, "d2 has another fingerprint than d0"),
        ({"max_model_len": 47}, "d2 takes 47 tokens at most, and this may grow to 48"),
        ({"blocks": 3}, "d2 has 32 KV tokens free, and it needs 48"),
        ({"seqs": 1}, "d2 has no free slot: it has 1 requests"),
    ],
)
def test_a_target_without_room_says_what_it_lacks(of_d2: dict[str, Any], says: str) -> None:
    rig = fleet()
    rig.gone(D1)
    rig.beat(rig.decode("d2", **of_d2), Load())
    if "seqs" in of_d2:
        ask(rig, "drain", worker="d0")
        rig.submit("q")
        assert rig.known("q").decode == D2
    with pytest.raises(BatonError, match=says):
        ask(rig, "move", request="r0", to="d2")
    with pytest.raises(BatonError, match=f"no other decode worker can take it: .*{says}"):
        ask(rig, "move", request="r0")


def test_the_story_of_a_move_is_told() -> None:
    rig = fleet()
    ask(rig, "move", request="r0", to="d1")
    (row,) = ask(rig, "requests")
    assert row["move"] == "leaves for d1 (operator)"
    rig.tick(LATER)
    give_up(rig)
    (row,) = ask(rig, "requests")
    assert row["move"] == "from d0 (operator)"
    rig.now += 0.05
    rig.started("r0", 2, peer=D1, kv=MOVED)
    first, second = ask(rig, "explain", id="r0")["attempts"]
    move = second["move"]
    assert (move["reason"], move["source"], move["target"]) == ("operator", "d0", "d1")
    assert (move["tokens"], move["recomputed_tokens"]) == (44, 44)
    assert (move["bytes"], move["pause_ms"]) == (3072, 50.0)
    told = second["sentences"][0]
    assert told.startswith("it left d0 after 44 tokens: an operator moves this stream to d1")
    assert "went on at d1 after a pause of 50.0 ms, with 3072 bytes of KV" in told
    assert "when it was told to move (operator)" in first["sentences"][-1]
    assert first["move"] is None


@pytest.mark.parametrize(
    ("case", "outcome"),
    [("kv", "moved"), ("no kv", "recomputed"), ("left", "lost"), ("ended", "ended")],
)
def test_each_move_is_counted_once_by_reason_and_outcome(case: str, outcome: str) -> None:
    rig = fleet()
    ask(rig, "move", request="r0", to="d1")
    rig.tick(LATER)
    if case == "ended":
        rig.ended("r0")
    else:
        give_up(rig)
    if case == "left":
        rig.cancel("r0", 2)
        rig.ended("r0", 2, peer=D1, error="cancelled")
    if case in ("kv", "no kv"):
        report = MOVED if case == "kv" else KvReport(blocks=1)
        rig.started("r0", 2, peer=D1, kv=report)
        rig.ended("r0", 2, peer=D1)
    assert counted(rig) == {("operator", outcome): 1}
    assert rig.core.tables.counts.move_pauses.count == (case in ("kv", "no kv"))


def test_the_scrape_tells_of_moves_by_reason_and_outcome() -> None:
    rig = fleet()
    ask(rig, "move", request="r0", to="d1")
    rig.tick(LATER)
    give_up(rig)
    rig.now += 0.025
    rig.started("r0", 2, peer=D1)
    view = View(rig.core.shared, rig.now, {})
    lines = scraped(RouterMetrics(lambda: view).collect()).splitlines()
    assert 'baton_router_moves_total{outcome="moved",reason="operator"} 1.0' in lines
    assert 'baton_router_move_pause_seconds_bucket{le="0.02"} 0.0' in lines
    assert 'baton_router_move_pause_seconds_bucket{le="0.03"} 1.0' in lines


def test_the_timeline_shows_the_transfer_between_both_workers() -> None:
    rig = fleet()
    ask(rig, "move", request="r0", to="d1")
    rig.tick(LATER)
    give_up(rig)
    rig.started("r0", 2, peer=D1, kv_ms=6.0)
    rig.ended("r0", 2, peer=D1)
    legs = (
        *(Leg("queue", 1, 1.0), Leg("placed", 1, 9.0), Leg("decode", 1, 50.0)),
        *(Leg("recovery", 2, 1.0), Leg("placed", 2, 10.0), Leg("decode", 2, 40.0)),
    )
    summary = RequestSummary(
        request_id="r0", attempt=2, outcome="ended", legs=legs, prompt_tokens=40
    )
    rig.receive("g0|1", summary)
    rig.tick(0.2)
    phases = ask(rig, "explain", id="r0")["timeline"]["phases"]
    later = [(p["phase"], p["worker"], p["ms"]) for p in phases if p["attempt"] == 2]
    assert later[2:] == [
        ("transfer", "d0>d1", 6.0),
        ("first_token", "d1", 4.0),
        ("decode", "d1", 40.0),
    ]


def test_what_its_worker_gave_up_by_itself_is_counted_as_a_stop() -> None:
    rig = fleet()
    rig.leave(D0)
    rig.ended("r0", error=Code.DRAINING)
    submit_next(rig)
    rig.started("r0", 2, peer=D1)
    assert counted(rig) == {("stop", "moved"): 1}


def test_what_another_router_ordered_has_no_reason_here() -> None:
    rig = fleet()
    rig.ended("r0", error=Code.MOVED)
    submit_next(rig)
    rig.started("r0", 2, peer=D1)
    assert rig.core.tables.counts.moves == {(MoveReason.UNORDERED, MoveOutcome.MOVED): 1}
    assert len(rig.take(Decode, D1)) == 1
