"""Drain, resume, evict: what the core does, and what an operator may get wrong."""

import pytest

from common.errors import BatonError
from common.messages import Abort, Beat, Decode, Drain, Failed, Load, PairTrouble, Refused, Role
from services.router.records.states import WorkerState
from tests.rigs.messages import worker_hello
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig, standard


def shown(rig: Rig, name: str) -> str:
    state: str = next(row["state"] for row in ask(rig, "workers") if row["name"] == name)
    return state


def beats(rig: Rig, peer: str = "d0|1", *, drained: bool) -> None:
    rig.receive(peer, Beat(load=Load(), drained=drained))


def test_a_drained_worker_finishes_what_it_has_and_gets_nothing_new(rig: Rig) -> None:
    rig.submit("r1")
    told = ask(rig, "drain", worker="d0")
    assert (told["state"], told["requests_left"]) == ("draining", 1)
    assert [d.on for d in rig.take(Drain, "d0|1")] == [True]
    rig.submit("r2")
    assert rig.state("r2") == "queued"
    rig.ended("r1")
    assert rig.state("r1") == "ended"
    assert shown(rig, "d0") == "drained"
    ask(rig, "resume", worker="d0")
    assert rig.state("r2") == "placed"
    assert shown(rig, "d0") == "ready"


def test_an_order_is_said_again_until_a_beat_agrees(rig: Rig) -> None:
    ask(rig, "drain", worker="d0")
    rig.sent.clear()
    beats(rig, drained=False)
    assert [d.on for d in rig.take(Drain)] == [True]
    assert shown(rig, "d0") == "drained", "a beat from before the order undoes nothing"
    beats(rig, drained=True)
    beats(rig, drained=True)
    assert not rig.take(Drain)
    ask(rig, "resume", worker="d0")
    beats(rig, drained=True)
    assert shown(rig, "d0") == "ready"
    beats(rig, drained=False)
    assert shown(rig, "d0") == "ready"


def test_a_drain_outlives_the_router_and_is_known_to_the_other() -> None:
    rig = Rig()
    rig.gateway()
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    beats(rig, drained=True)
    assert shown(rig, "d0") == "drained"
    rig.submit("r1")
    assert rig.state("r1") == "queued"
    beats(rig, drained=False)
    assert rig.state("r1") == "placed"


def test_drain_and_resume_are_idempotent(rig: Rig) -> None:
    for _ in range(2):
        assert ask(rig, "drain", worker="d0")["state"] == "drained"
    for _ in range(2):
        assert ask(rig, "resume", worker="d0")["state"] == "ready"
    rig.submit("r1")
    assert len(rig.take(Decode)) == 1


def test_a_drained_prefill_worker_is_not_paired(rig: Rig) -> None:
    ask(rig, "drain", worker="p0")
    rig.submit("r1")
    assert rig.take(Decode)[0].ticket is None


def test_evicting_a_worker_drops_all_it_holds_and_drains_it(rig: Rig) -> None:
    rig.submit("r1")
    rig.submit("r2")
    rig.started("r2")
    rig.sent.clear()
    told = ask(rig, "evict", worker="d0")
    assert (told["state"], told["requests_dropped"]) == ("drained", 2)
    assert {f.request_id for f in rig.take(Failed)} == {"r1", "r2"}
    assert {a.request_id for a in rig.take(Abort, "d0|1")} == {"r1", "r2"}
    assert rig.nothing_held()
    rig.submit("r3")
    assert rig.state("r3") == "queued"
    assert ask(rig, "evict", worker="d0")["requests_dropped"] == 0


@pytest.mark.parametrize("phase", ["queued", "placed", "decoding"])
def test_evicting_a_request_tells_its_client_and_its_worker(phase: str, rig: Rig) -> None:
    if phase == "queued":
        ask(rig, "drain", worker="d0")
    rig.submit("r1")
    if phase == "decoding":
        rig.started("r1")
    rig.sent.clear()
    assert ask(rig, "evict", request="r1")["was"] == phase
    failed = [(f.request_id, f.message) for f in rig.take(Failed, "g0|1")]
    refused = [(r.request_id, r.message) for r in rig.take(Refused, "g0|1")]
    assert failed + refused == [("r1", "an operator evicted it")]
    if phase != "queued":
        assert [a.request_id for a in rig.take(Abort, "d0|1")] == ["r1"]
        rig.ended("r1", error="cancelled")
    assert rig.nothing_held()
    assert not rig.core.tables.attempts


@pytest.mark.parametrize("verb", ["drain", "resume", "evict"])
def test_an_unknown_worker_is_refused_with_the_names_there_are(verb: str, rig: Rig) -> None:
    rig.gone("p0|1")
    with pytest.raises(BatonError, match=r"no worker 'nope'; there are: d0$") as error:
        ask(rig, verb, worker="nope")
    assert error.value.code == "not_found"


def test_a_name_in_two_roles_needs_its_role(rig: Rig) -> None:
    rig.receive("x|1", worker_hello(Role.PREFILL, "x", "1"))
    rig.receive("x|2", worker_hello(Role.DECODE, "x", "2"))
    with pytest.raises(BatonError, match="say prefill/x or decode/x"):
        ask(rig, "drain", worker="x")
    assert ask(rig, "drain", worker="decode/x")["role"] == "decode"
    assert rig.row("x|2").drained
    assert not rig.row("x|1").drained


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "needs a worker or request=ID"),
        ({"worker": "d0", "request": "r1"}, "one of the two"),
        ({"request": "nope"}, "no request 'nope' is queued or running"),
    ],
)
def test_what_to_evict_must_be_clear(args: dict[str, str], says: str) -> None:
    with pytest.raises(BatonError, match=says):
        ask(standard(), "evict", **args)


def test_a_drained_worker_that_leaves_or_dies_does_so_as_ever(rig: Rig) -> None:
    ask(rig, "drain", worker="d0")
    rig.gone("d0|1")
    assert rig.row("d0|1").state is WorkerState.GONE


def in_quarantine() -> Rig:
    """The digest of what p0 sent d0 was wrong: they are not paired for a while."""
    rig = standard()
    rig.submit("r1")
    trouble = PairTrouble(
        request_id="r1",
        attempt=1,
        prefill="p0",
        prefill_incarnation="1",
        kind="digest",
        message="the digest was wrong twice",
    )
    rig.receive("d0|1", trouble)
    rig.ended("r1")
    rig.sent.clear()
    return rig


def test_a_pair_in_quarantine_is_listed_and_cleared() -> None:
    rig = in_quarantine()
    (pair,) = ask(rig, "quarantine")["pairs"]
    assert (pair["prefill"], pair["decode"], pair["kind"]) == ("p0", "d0", "digest")
    assert pair["retry_in_s"] > 0
    rig.submit("r2")
    assert rig.take(Decode)[0].ticket is None
    cleared = ask(rig, "quarantine", action="clear", decode="d0")
    assert cleared == {"cleared": 1, "pairs": [], "prompts": []}
    rig.submit("r3")
    assert rig.take(Decode)[0].ticket is not None
    assert ask(rig, "quarantine", action="clear")["cleared"] == 0


def test_an_unknown_worker_has_no_quarantine() -> None:
    with pytest.raises(BatonError, match=r"no prefill worker 'd0'; there are: p0$"):
        ask(in_quarantine(), "quarantine", action="clear", prefill="d0")
    with pytest.raises(BatonError, match="action must be one of: list, clear"):
        ask(standard(), "quarantine", action="lift")
