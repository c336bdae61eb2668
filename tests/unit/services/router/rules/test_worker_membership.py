"""Who is there: joining, silence, loss, return, fencing, and what gateways hear of it."""

from typing import Any

import pytest

from common.messages import (
    Abort,
    Beat,
    Capacity,
    Decode,
    Failed,
    Fleet,
    KvCounts,
    Load,
    Placed,
    Refused,
    Role,
    Welcome,
)
from services.router.events import Note
from services.router.records.states import WorkerState
from services.router.tables.shared import FENCED_MAX, GONE_MAX
from tests.rigs.messages import hello, worker_hello
from tests.unit.services.router.rig import Rig, standard


def drops(rig: Rig) -> dict[str, int]:
    return rig.core.tables.counts.dropped


def test_hello_is_welcomed_and_a_worker_is_ready_after_its_first_beat() -> None:
    rig = Rig()
    rig.gateway()
    assert [type(send.message) for send in rig.sent] == [Welcome, Fleet]
    assert rig.take(Fleet)[0].ready is False
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    assert rig.row("d0|1").state is WorkerState.JOINING
    rig.submit()
    assert not rig.take(Decode)
    rig.beat("d0|1")
    fleet = rig.take(Fleet)[-1]
    assert (fleet.ready, fleet.decode_ready, fleet.max_model_len) == (True, 1, 1000)
    assert fleet.model == "model"
    assert len(rig.take(Decode)) == 1


def test_gateways_hear_of_changes_only(rig: Rig) -> None:
    rig.beat("d0|1")
    rig.tick()
    assert not rig.take(Fleet)
    rig.leave("d0|1")
    fleet = rig.take(Fleet)[0]
    assert (fleet.ready, fleet.prefill_ready, fleet.decode_ready) == (False, 1, 0)
    assert fleet.max_model_len == 1000
    assert fleet.reason == "no decode worker is ready: 1 draining"


@pytest.mark.parametrize(
    ("peer", "message", "code"),
    [
        ("d0|1", worker_hello(Role.DECODE, "d0", wire_version=99), "wire_mismatch"),
        ("d0|2", worker_hello(Role.DECODE, "d0"), "invalid_request"),
        ("x", worker_hello(Role.DECODE, "d0"), "invalid_request"),
        ("|1", worker_hello(Role.DECODE, ""), "invalid_request"),
        ("d0|1", hello(Role.DECODE, "d0", "1"), "invalid_request"),
        ("d0|1", worker_hello(Role.DECODE, "d0", fingerprint=""), "invalid_request"),
        ("d0|1", worker_hello(Role.DECODE, "d0", blocks=0), "invalid_request"),
        ("d0|1", worker_hello(Role.DECODE, "d0", seqs=-1), "invalid_request"),
        ("d0|1", worker_hello(Role.DECODE, "d0", block_tokens=0), "invalid_request"),
        ("g0|1", hello(Role.GATEWAY, "g0", "1"), "invalid_request"),
        ("h0|1", hello(Role.HEALTH, "h0", "1"), "invalid_request"),
        ("r1|1", hello(Role.ROUTER, "r1", "1"), "invalid_request"),
    ],
)
def test_a_bad_hello_is_refused_and_nobody_is_there(peer: str, message: Any, code: str) -> None:
    rig = Rig()
    rig.receive(peer, message)
    assert [(send.peer, type(send.message)) for send in rig.sent] == [(peer, Refused)]
    assert rig.take(Refused)[0].code == code
    assert rig.core.peers() == []
    assert rig.core.role_of(peer) is None


def test_one_identity_cannot_change_its_role() -> None:
    rig = Rig()
    rig.decode("x")
    rig.receive("x|1", worker_hello(Role.PREFILL, "x"))
    assert "another role" in rig.take(Refused)[0].message
    assert rig.core.role_of("x|1") is Role.DECODE


def test_nothing_counts_before_hello() -> None:
    rig = Rig()
    rig.beat("d0|1")
    rig.submit()
    rig.ended()
    assert drops(rig) == {"before hello": 3}
    assert not rig.sent


def test_pairs_are_made_of_equal_fingerprints_only() -> None:
    rig = Rig()
    rig.gateway()
    rig.prefill("pa", fingerprint="a")
    rig.decode("db", fingerprint="b")
    rig.submit("r1")
    assert rig.take(Decode)[0].ticket is None
    rig.prefill("pb", fingerprint="b")
    rig.submit("r2")
    ticket = rig.take(Decode)[0].ticket
    assert ticket is not None
    assert (ticket.prefill, ticket.fingerprint) == ("pb", "b")


def test_silence_makes_suspect_then_ejected_and_steady_life_heals() -> None:
    rig = standard(worker_timeout_ms=3_000.0)
    others = ("g0|1", "p0|1")
    rig.tick(1.4, alive=others)
    assert rig.row("d0|1").state is WorkerState.READY
    rig.tick(0.2, alive=others)
    assert rig.row("d0|1").state is WorkerState.SUSPECT
    assert rig.take(Fleet)[-1].ready is False
    rig.submit()
    assert rig.state() == "queued"
    rig.beat("d0|1")
    assert rig.row("d0|1").state is WorkerState.SUSPECT, "one sign of life is no proof"
    rig.tick(0.8, alive=(*others, "d0|1"))
    assert rig.row("d0|1").state is WorkerState.SUSPECT
    rig.tick(0.4, alive=(*others, "d0|1"))
    assert rig.row("d0|1").state is WorkerState.READY
    assert rig.state() == "placed"
    rig.tick(3.2, alive=others)
    assert rig.row("d0|1").state is WorkerState.EJECTED
    assert rig.take(Failed)[0].code == "worker_lost"
    assert rig.nothing_held()


def test_a_suspect_that_had_not_joined_still_has_to() -> None:
    rig = Rig()
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    rig.tick(1.8)
    assert rig.row("d0|1").state is WorkerState.SUSPECT
    rig.receive("d0|1", Beat())
    rig.now += 1.0
    rig.receive("d0|1", Beat())
    assert rig.row("d0|1").state is WorkerState.JOINING
    rig.beat("d0|1")
    assert rig.row("d0|1").state is WorkerState.READY


def test_a_draining_worker_gets_nothing_new_and_finishes_what_it_has(rig: Rig) -> None:
    rig.decode("d1")
    rig.submit("r1")
    busy = rig.known("r1").decode
    rig.leave(busy)
    rig.leave(busy)
    rig.submit("r2")
    assert rig.known("r2").decode != busy
    rig.started("r1", peer=busy)
    rig.ended("r1", peer=busy)
    assert rig.state("r1") == "ended"
    rig.beat(busy)
    assert rig.row(busy).state is WorkerState.DRAINING


def test_a_lost_decode_worker_fails_its_requests_and_frees_p(rig: Rig) -> None:
    rig.submit("r1")
    rig.submit("r2")
    rig.started("r2")
    rig.prefilled("r2")
    rig.sent.clear()
    rig.gone("d0|1")
    failed = rig.take(Failed)
    assert [(f.request_id, f.attempt, f.code) for f in failed] == [
        ("r1", 1, "worker_lost"),
        ("r2", 1, "worker_lost"),
    ]
    assert "d0 was lost: its connection closed" in failed[0].message
    assert [(s.peer, s.message) for s in rig.sent if isinstance(s.message, Abort)] == [
        ("p0|1", Abort(request_id="r1", attempt=1, reason="decode worker lost"))
    ]
    assert rig.nothing_held()
    rig.sent.clear()
    rig.gone("d0|1")
    assert not rig.sent


def test_a_lost_prefill_worker_fails_nothing(rig: Rig) -> None:
    rig.submit("r1")
    rig.sent.clear()
    rig.gone("p0|1")
    assert not rig.take(Failed)
    assert not rig.take(Abort)
    assert "p0 was lost" in rig.known().prefill_problem
    assert rig.row("d0|1").held_tokens == 48
    rig.started(kv=None)
    rig.ended()
    assert rig.state() == "ended"
    assert rig.nothing_held()


def test_a_lost_gateway_takes_its_requests_along() -> None:
    rig = standard(max_active=2)
    rig.gateway("g1")
    rig.submit("r1")
    rig.submit("r2", gateway="g1|1")
    rig.submit("r3")
    rig.sent.clear()
    rig.gone("g0|1")
    assert not rig.take(Abort), "it may be back in a moment"
    rig.tick(2.2, alive=("p0|1", "d0|1", "g1|1"))
    aborted = [(s.peer, s.message.request_id) for s in rig.sent if isinstance(s.message, Abort)]
    assert aborted == [("d0|1", "r1"), ("p0|1", "r1")]
    assert (rig.state("r1"), rig.state("r2"), rig.state("r3")) == (
        "aborting",
        "placed",
        "cancelled",
    )
    rig.ended("r1", error="cancelled")
    rig.ended("r2")
    assert rig.nothing_held()


def test_a_new_incarnation_fences_the_old_one(rig: Rig) -> None:
    rig.submit("r1")
    rig.sent.clear()
    rig.receive("d0|2", worker_hello(Role.DECODE, "d0", "2"))
    assert rig.take(Failed)[0].request_id == "r1"
    assert "d0|1" not in rig.core.tables.workers
    rig.beat("d0|2", Load())
    rig.submit("r2")
    rig.ended("r2", peer="d0|1")
    assert rig.state("r2") == "placed"
    assert drops(rig)["before hello"] == 1
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0", "1"))
    assert "was replaced by d0|2" in rig.take(Refused)[0].message
    assert rig.row("d0|2").state is WorkerState.READY


def test_a_new_gateway_incarnation_fences_the_old_one(rig: Rig) -> None:
    rig.submit("r1")
    rig.gateway("g0", "2")
    assert rig.state("r1") == "aborting"
    rig.submit("r2")
    assert drops(rig)["before hello"] == 1
    rig.submit("r2", gateway="g0|2")
    assert rig.state("r2") == "placed"


def test_the_same_name_in_two_roles_is_two_workers(rig: Rig) -> None:
    rig.receive("x|1", worker_hello(Role.PREFILL, "x", "1"))
    rig.receive("x|2", worker_hello(Role.DECODE, "x", "2"))
    assert {"x|1", "x|2"} <= set(rig.core.peers())


def test_what_is_remembered_of_the_lost_is_bounded(rig: Rig) -> None:
    for i in range(FENCED_MAX + 20):
        rig.decode("x", str(i))
    for i in range(GONE_MAX + 20):
        rig.gone(rig.decode(f"y{i}"))
        rig.gone(rig.gateway(f"z{i}"))
    rig.tick()
    assert len(rig.core.shared.fenced) == FENCED_MAX
    assert len(rig.core.tables.workers) <= GONE_MAX + 4
    assert len(rig.core.tables.gateways) <= GONE_MAX + 2
    assert len(rig.core.shared.names) <= 2 * GONE_MAX + 6


def test_a_worker_of_one_tiny_block_is_never_asked_for_more() -> None:
    rig = Rig()
    rig.gateway()
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0", blocks=1))
    rig.beat("d0|1", Load())
    rig.submit(prompt=1, out=1)
    assert rig.take(Refused)[0].code == "context_length_exceeded"
    assert not rig.take(Placed)


def test_capacity_is_what_hello_said(rig: Rig) -> None:
    assert rig.row("d0|1").capacity == Capacity(
        block_tokens=16, kv_blocks=100, kv_block_bytes=1024, max_model_len=1000, max_num_seqs=8
    )


def test_a_disk_of_a_store_that_failed_is_told_once(rig: Rig) -> None:
    def told(failed: int) -> list[str]:
        beat = Beat(load=Load(), kv_counts=KvCounts(store_disk_off=failed))
        notes = [action for action in rig.receive("d0|1", beat) if isinstance(action, Note)]
        return [note.sentence for note in notes if note.event == "store.disk_off"]

    assert told(0) == []
    (sentence,) = told(1)
    assert "d0 keeps no KV on disk" in sentence
    assert told(1) == []
