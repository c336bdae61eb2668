"""What `explain` and `status` tell of each course a request may take."""

from typing import Any

import msgspec
import pytest

from common.errors import BatonError
from common.messages import KvReport, Leg, Load, RequestSummary
from services.router.admin.answer import run
from services.router.admin.verb import View
from tests.unit.services.router.rig import Rig, standard


def ask(rig: Rig, name: str, **args: Any) -> Any:
    """The result as a client of the admin socket decodes it."""
    view = View(rig.core.shared, rig.now, {"bad frame": 2}, rig.handle)
    return msgspec.json.decode(msgspec.json.encode(run(view, name, args)))


def story(rig: Rig, attempt: int = 0) -> str:
    return "\n".join(ask(rig, "explain", id="r1")["attempts"][attempt]["sentences"])


WAY = (Leg("queue", 1, 50.0), Leg("placed", 1, 250.0))


def test_the_whole_story_of_a_handoff(rig: Rig) -> None:
    rig.submit()
    rig.now += 0.010
    rig.prefilled()
    rig.now += 0.005
    rig.started()
    rig.now += 0.070
    rig.ended()
    told = ask(rig, "explain", id="r")["attempts"][0]
    assert told["phases"] == [
        {"phase": "queue", "start_ms": 0.0, "end_ms": 0.0},
        {"phase": "prefill", "start_ms": 0.0, "end_ms": 10.0},
        {"phase": "first_token", "start_ms": 0.0, "end_ms": 15.0},
        {"phase": "decode", "start_ms": 15.0, "end_ms": 85.0},
    ]
    assert (told["state"], told["outcome"], told["total_ms"]) == ("ended", "length", 85.0)
    assert told["kv"]["payload_bytes"] == 3072
    assert told["kv"]["overlap"] == 0.75
    assert told["workers_ms"] == {"prefill": 3.0, "kv": 0.0, "first_token": 5.0}
    text = story(rig)
    assert "placed by cost: p0 costs the least of 1 prefill workers with room" in text
    assert "p0 computed the prompt in 3.0 ms" in text
    assert "the handoff moved 3 KV blocks, 3072 bytes in 1 messages" in text
    assert "75% of the bytes were sent before the prefill ended" in text
    assert "d0 made the first token 5.0 ms after it was asked" in text
    assert "ended (length) with 8 tokens, 10.00 ms each after the first" in text
    assert {c["name"] for c in told["candidates"]} == {"p0", "d0"}


def test_the_story_says_that_kv_was_compressed(rig: Rig) -> None:
    rig.submit()
    rig.prefilled()
    rig.started(
        kv=KvReport(
            blocks=3,
            complete=True,
            messages=1,
            payload_bytes=780,
            raw_bytes=3072,
            compression="fp8",
        )
    )
    assert "compressed fp8: 3072 bytes became 780" in story(rig)


@pytest.mark.parametrize("cold", [True, False])
def test_the_story_says_that_the_drafter_starts_cold(rig: Rig, *, cold: bool) -> None:
    rig.submit()
    rig.prefilled()
    rig.started(kv=KvReport(blocks=3, complete=True, drafter_cold=cold))
    sentence = "the drafter of d0 starts cold: p0 handed over none of its KV"
    assert (sentence in story(rig)) is cold


def test_the_story_says_that_a_part_came_only(rig: Rig) -> None:
    rig.submit()
    rig.prefilled()
    rig.started(kv=KvReport(blocks=2, messages=1, payload_bytes=2048, retries=2))
    assert "2048 bytes in 1 messages" in story(rig)
    assert "not all of it came: decode computed the rest itself" in story(rig)


def test_the_story_of_one_that_waits() -> None:
    rig = standard(max_active=8)
    rig.submit("other", prompt=900, out=90)
    rig.submit(prompt=900, out=90)
    rig.now += 0.5
    assert "queued for 500.0 ms, waiting for free KV blocks on a decode worker" in story(rig)
    assert "now queued" in story(rig)
    row = ask(rig, "requests", state="queued")[0]
    assert row["waits_for"] == "free KV blocks on a decode worker"
    assert ask(rig, "requests", limit=1)[0]["request_id"] == "other"


def test_the_story_of_a_lost_prefill_worker(rig: Rig) -> None:
    rig.submit()
    rig.gone("p0|1")
    assert "p0 was lost: its connection closed; d0 computes the prompt itself" in story(rig)


def test_the_story_of_a_lost_decode_worker_and_the_next_attempt(rig: Rig) -> None:
    rig.submit()
    rig.gone("d0|1")
    rig.decode("d0", "2")
    rig.submit("r1", 2)
    assert "failed (worker_lost): decode worker d0 was lost" in story(rig, 0)
    assert "now placed" in story(rig, 1)


def test_the_story_of_a_refusal_and_of_a_cancel() -> None:
    rig = standard()
    rig.submit(prompt=5000)
    assert "refused (context_length_exceeded): 5000 prompt tokens" in story(rig)
    rig = standard()
    rig.submit()
    rig.cancel()
    assert "now aborting: client left" in story(rig)
    rig.ended(error="cancelled")
    assert "cancelled (cancelled) after 8 tokens: client left" in story(rig)


def test_status_counts() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    rig.submit("r2")
    rig.submit("big", prompt=5000)
    status = ask(rig, "status")
    assert (status["active"], status["active_max"], status["queued"]) == (1, 1, 1)
    assert status["refused"] == {"context_length_exceeded": 1}
    assert status["dropped"] == {"bad frame": 2}
    assert status["totals"]["submitted"] == 3


def test_workers_are_listed_by_role_and_name(rig: Rig) -> None:
    rig.prefill("p-a")
    rig.decode("a")
    rig.beat("a|1", Load(running=3, kv_used=0.5))
    rows = ask(rig, "workers")
    assert [row["name"] for row in rows] == ["p-a", "p0", "a", "d0"]
    assert ask(rig, "workers", role="") == rows
    assert rows[2]["kv_used"] == 0.5
    rig.gone("a|1")
    assert ask(rig, "workers", role="decode")[0]["state"] == "gone"


def test_the_flight_recorder_is_listed_and_outlives_the_history() -> None:
    rig = standard(history=1)
    rig.submit()
    rig.now += 0.3
    rig.started()
    rig.ended()
    rig.receive("g0|1", RequestSummary(request_id="r1", attempt=1, outcome="ended", legs=WAY))
    rig.tick()
    rig.submit("big", prompt=5000)
    rig.submit("next")
    rig.ended("next")
    rig.tick()
    (slow,) = ask(rig, "explain", list="slow")
    assert (slow["request_id"], slow["slow_by"]) == ("r1", ["total_ms"])
    assert (slow["longest_phase"], slow["longest_ms"]) == ("first_token", 300.0)
    (refused,) = ask(rig, "explain", list="refused")
    assert refused["code"] == "context_length_exceeded"
    assert ask(rig, "explain", list="failed") == []
    told = ask(rig, "explain", id="r1")
    assert told["timeline"]["total_ms"] == 300.0
    assert told["attempts"][0]["decode"] == "d0"


def test_a_request_that_just_ended_has_its_timeline_at_once(rig: Rig) -> None:
    rig.submit()
    assert ask(rig, "explain", id="r1")["timeline"] == {}
    rig.started()
    rig.ended()
    rig.receive("g0|1", RequestSummary(request_id="r1", attempt=1, outcome="ended", legs=WAY))
    assert ask(rig, "explain", id="r1")["timeline"]["total_ms"] == 300.0


def test_unknown_ids_are_not_found() -> None:
    with pytest.raises(BatonError, match="no request starts with 'nope'"):
        ask(standard(), "explain", id="nope")
