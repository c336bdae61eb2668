"""An evicted worker's streams move; what cannot is dropped, and the answer says why."""

from __future__ import annotations

from common.errors import Code
from common.messages import Abort, Beat, Failed, HealthVerdict, Introduce, Load, Move
from services.router.rules.moves import CONNECT_SECONDS
from services.router.rules.operator import EVICT_SECONDS
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rules.test_moves import ALL, D0, D1, fleet, give_up, submit_next
from tests.unit.services.router.rules.test_moves_ordered import counted

LATER = CONNECT_SECONDS + 0.3


def test_streams_move_and_the_rest_is_dropped_at_once() -> None:
    rig = fleet(2)
    ask(rig, "drain", worker="d1")
    rig.submit("x", resumable=True)
    assert rig.known("x").decode == D0
    ask(rig, "resume", worker="d1")
    rig.sent.clear()
    told = ask(rig, "evict", worker="d0")
    assert told["dropped_because"] == {"it has no token yet": 1}
    assert [f.request_id for f in rig.take(Failed)] == ["x"]
    assert told["requests_moving"] == 2
    assert len(rig.take(Introduce, D1)) == 1
    rig.tick(LATER)
    assert [m.reason for m in rig.take(Move, D0)] == [
        "this stream leaves d0: an operator evicts what it holds"
    ] * 2
    for request in ("r0", "r1"):
        give_up(rig, request)
        rig.started(request, 2, peer=D1)
    rig.take(Abort)
    rig.tick(EVICT_SECONDS, alive=ALL)
    assert (rig.take(Failed), rig.take(Abort, D0)) == ([], [])
    assert counted(rig) == {("evict", "moved"): 2}


def test_what_has_not_moved_in_time_is_dropped() -> None:
    rig = fleet()
    ask(rig, "evict", worker="d0")
    rig.tick(EVICT_SECONDS - 0.4, alive=ALL)
    assert rig.take(Failed) == []
    rig.tick(0.8, alive=ALL)
    assert [(f.request_id, f.code) for f in rig.take(Failed)] == [("r0", Code.WORKER_LOST)]
    assert [a.request_id for a in rig.take(Abort, D0)] == ["r0"]
    assert counted(rig) == {("evict", "ended"): 1}
    assert rig.row(D0).drop_at is None


def test_a_stream_that_is_dropped_is_not_told_to_move_as_well() -> None:
    """Another worker had no room until its time was over."""
    rig = fleet()
    ask(rig, "evict", worker="d0")
    ask(rig, "drain", worker="d1")
    rig.tick(EVICT_SECONDS - 0.2, alive=ALL)
    assert (rig.take(Failed), rig.take(Move, D0)) == ([], [])
    ask(rig, "resume", worker="d1")
    rig.now = rig.row(D0).drop_at or 0.0
    rig.tick()
    assert [f.request_id for f in rig.take(Failed)] == ["r0"]
    assert rig.take(Move, D0) == []


def test_a_second_eviction_drops_at_once_what_has_not_moved() -> None:
    rig = fleet()
    assert ask(rig, "evict", worker="d0")["requests_moving"] == 1
    told = ask(rig, "evict", worker="d0")
    assert (told["requests_dropped"], told["requests_moving"]) == (1, 0)
    assert told["dropped_because"] == {"it had not moved": 1}
    assert len(rig.take(Failed)) == 1


def test_streams_of_an_evicted_worker_move_though_others_wait() -> None:
    rig = fleet(seqs=8, blocks=100)
    for n in range(2):
        rig.submit(f"q{n}", prompt=700, out=100, resumable=True)
    rig.submit("q2", prompt=800, out=100, resumable=True)
    assert len(rig.core.tables.waiting) == 1
    ask(rig, "evict", worker="d0")
    rig.tick(LATER)
    assert [m.request_id for m in rig.take(Move, D0)] == ["r0"]


def test_where_nobody_has_room_all_is_dropped_and_it_is_said() -> None:
    rig = fleet()
    rig.gone(D1)
    told = ask(rig, "evict", worker="d0")
    assert told["dropped_because"] == {"no other decode worker has room": 1}
    assert len(rig.take(Failed)) == 1


def test_the_last_worker_has_all_its_slots_for_them_though_it_has_just_come_back() -> None:
    rig = fleet(seqs=4)
    ask(rig, "drain", worker="d0")
    rig.submit("x", resumable=True)
    ask(rig, "resume", worker="d0")
    rig.row(D1).ramp_from = rig.now
    rig.row(D1).set_slots(1)
    told = ask(rig, "evict", worker="d0")
    assert (told["requests_dropped"], told["requests_moving"]) == (0, 1)


def test_kv_that_is_not_trusted_is_not_taken_along() -> None:
    rig = fleet()
    verdict = HealthVerdict(reason="its canary had wrong tokens")
    rig.receive(D0, Beat(load=Load(), health_verdict=verdict))
    told = ask(rig, "evict", worker="d0")
    why = "its KV is not trusted, because its canary had wrong tokens"
    assert told["dropped_because"] == {why: 1}
    rig.tick(LATER)
    assert rig.take(Move) == []


def test_a_worker_that_is_resumed_drops_nothing() -> None:
    rig = fleet()
    ask(rig, "evict", worker="d0")
    ask(rig, "resume", worker="d0")
    rig.tick(EVICT_SECONDS + 0.4, alive=ALL)
    assert rig.take(Failed) == []
    assert rig.state("r0") == "decoding"


def test_a_stream_that_moved_and_comes_back_to_the_evicted_worker_is_no_more_there() -> None:
    rig = fleet()
    ask(rig, "evict", worker="d0")
    rig.tick(LATER)
    rig.ended("r0", error=Code.MOVED)
    rig.gone(D1)
    submit_next(rig)
    assert rig.state("r0", 2) == "queued", "d0 is drained"
