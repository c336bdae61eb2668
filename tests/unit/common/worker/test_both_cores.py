"""A mixed worker has a prefill and a decode core: each event reaches the one that it is about."""

from __future__ import annotations

from typing import Any

import pytest

from common.engine.port import Batch, Output
from common.messages import (
    Abort,
    Decode,
    DecodeStarted,
    Ended,
    HandOver,
    Move,
    PairTrouble,
    Prefill,
    PrefillEnded,
    Role,
)
from common.worker.actions import (
    AbortInEngine,
    AddToEngine,
    DrainOver,
    EngineRefused,
    GatewayGone,
    HandOverKept,
    ToGateway,
    ToRouter,
)
from common.worker.roles import RoleCores
from tests.rigs.messages import decode, kv_done, ticket
from tests.unit.common.worker.test_roles import NOW, cores, dispatched, handle, order, prefill


@pytest.fixture
def core() -> RoleCores:
    """It has the stream `s` and the prompt `p`."""
    made = cores(mixed=True)
    for message in (decode("s"), prefill("p")):
        (added,) = handle(made, dispatched(message))
        assert isinstance(added, AddToEngine)
    return made


def held(core: RoleCores) -> list[str]:
    return [held.request_id for held in core.held_attempts()]


def told(core: RoleCores, event: Any) -> list[tuple[str, str]]:
    """What routers are told, and of whom."""
    reports = [a.message for a in handle(core, event) if isinstance(a, ToRouter)]
    return [(type(message).__name__, message.request_id) for message in reports]  # type: ignore[attr-defined]


def test_it_begins_in_both_roles_and_has_that_of_its_table_beside() -> None:
    core = cores(mixed=True)
    assert (core.role, core.configured, core.epoch) == (Role.MIXED, Role.DECODE, 0)
    assert core.can_change


def test_it_says_all_that_it_holds(core: RoleCores) -> None:
    assert (held(core), core.active) == (["s", "p"], 2)
    stream, prompt = core.held_attempt("s", 1), core.held_attempt("p", 1)
    assert stream is not None
    assert prompt is not None
    assert (stream.decode, prompt.prefill) == ("d0|inc-d0", "d0|inc-d0")
    assert core.held_attempt("x", 1) is None


def test_one_step_of_the_engine_brings_both_on(core: RoleCores) -> None:
    outputs = [Output("p#1", [1], "length", 1), Output("s#1", [7])]
    assert told(core, Batch(outputs=outputs)) == [("DecodeStarted", "s"), ("PrefillEnded", "p")]
    actions = handle(core, Batch(outputs=[Output("s#1", [8], "stop", 8)]))
    (sent,) = [action for action in actions if isinstance(action, ToGateway)]
    assert [delta.request_id for delta in sent.deltas] == ["s"]
    assert (held(core), core.dropped) == (["p"], 0)
    assert told(core, Batch(kv_done=[kv_done("p", 1, side="send")])) == []
    assert (held(core), core.dropped) == ([], 0)


def test_a_handoff_is_of_whoever_has_the_attempt(core: RoleCores) -> None:
    lost = kv_done("p#pull", trouble="transport", peer="p9", error="kv_transfer_failed")
    reports = told(core, Batch(kv_done=[lost]))
    assert [name for name, _ in reports] == [PairTrouble.__name__], "told once"


def test_an_abort_reaches_the_engine_once(core: RoleCores) -> None:
    actions = handle(core, Abort(request_id="p", attempt=1, reason="over"))
    assert actions == [AbortInEngine("p", 1)]
    assert told(core, Abort(request_id="s", attempt=1, reason="over")) == [("Ended", "s")]
    assert handle(core, Abort(request_id="x", attempt=1, reason="over")) == [AbortInEngine("x", 1)]
    assert (core.active, core.dropped) == (0, 0)


def test_what_the_engine_refuses_is_told_by_its_core(core: RoleCores) -> None:
    refused = [EngineRefused(name, 1, "internal", "no") for name in ("p", "s")]
    assert told(core, refused[0]) == [(PrefillEnded.__name__, "p")]
    assert told(core, refused[1]) == [(Ended.__name__, "s")]
    assert core.active == 0


def test_a_lost_gateway_and_the_end_of_a_drain_are_about_streams(core: RoleCores) -> None:
    assert told(core, GatewayGone("g0", "k", "closed")) == [("Ended", "s")]
    assert held(core) == ["p"]
    handle(core, dispatched(decode("t")))
    assert told(core, DrainOver("it stops")) == [("Ended", "t")]
    assert held(core) == ["p"], "whose KV the engine gives while it lives"


def test_a_stream_that_moves_is_kept_until_it_was_taken(core: RoleCores) -> None:
    handle(core, Batch(outputs=[Output("s#1", [7])]))
    handle(core, Move(request_id="s", attempt=1, reason="an order"))
    handle(core, Batch(outputs=[Output("p#1", [], "length")], left=["s#1"]))
    assert (held(core), core.active) == (["p"], 2)
    to = ticket("s", 2, prefill="d0", prefill_incarnation="inc-d0")
    assert handle(core, HandOver(ticket=to, kept_attempt=1)) == [HandOverKept(to, 1)]
    handle(core, Batch(kv_done=[kv_done("s", 1, side="send")]))
    assert core.active == 1


@pytest.mark.parametrize("message", [decode("p"), prefill("s"), decode("s"), prefill("p")])
def test_an_attempt_that_is_here_is_not_given_again(
    core: RoleCores, message: Prefill | Decode
) -> None:
    assert handle(core, dispatched(message)) == []
    assert (core.active, core.dropped) == (2, 1)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_it_gives_a_role_back_once_it_holds_nothing_of_either(core: RoleCores, role: Role) -> None:
    assert not order(core, role)
    handle(core, Batch(outputs=[Output("s#1", [8], "stop", 8)]))
    assert not core.change(NOW)
    handle(core, Batch(outputs=[Output("p#1", [1], "length", 1)]))
    assert not core.change(NOW), "its KV waits for whom it is for"
    handle(core, Batch(kv_done=[kv_done("p", 1, side="send")]))
    assert core.change(NOW)
    assert (core.role, core.epoch) == (role, 1)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_one_of_either_role_takes_the_other_besides(role: Role) -> None:
    core = cores(role)
    assert order(core, Role.MIXED)
    assert (core.role, core.configured) == (Role.MIXED, role)
    handle(core, dispatched(decode("s")))
    handle(core, dispatched(prefill("p")))
    assert held(core) == ["s", "p"]


def test_an_attempt_that_both_hold_is_noticed(core: RoleCores) -> None:
    core._cores[Role.PREFILL].handle(dispatched(prefill("s")), NOW)
    with pytest.raises(AssertionError, match="both cores have s#1"):
        core.check_invariants()


def test_the_report_of_a_stream_waits_for_its_handoff(core: RoleCores) -> None:
    handle(core, dispatched(decode("t", ticket=ticket("t", 1))))
    assert told(core, Batch(outputs=[Output("t#1", [7])])) == []
    reports = told(core, Batch(kv_done=[kv_done("t", 1)]))
    assert reports == [(DecodeStarted.__name__, "t")]
