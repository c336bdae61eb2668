"""The admin socket of a real daemon: both encodings, both kinds of client, every wrong frame."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from common.messages import Beat, Decode, Ended, Load, Placed, Role, Welcome
from common.net.admin_client import ask
from services.router.placement.policies.registry import POLICIES
from tests.component.services.router.daemon_rig import Running, running
from tests.rigs.messages import hello, submit, worker_hello

NAMES = (
    "status, workers, requests, explain, events, keys, kv, adapter, store, pairs, drain, resume, "
    "role, move, evict, quarantine, policy, balance, limits, reload, help"
)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as router:
        yield router


async def exchange(live: Running, kind: int, frames: list[bytes]) -> list[bytes]:
    """One question by a foreign client's own socket."""
    socket = zmq.asyncio.Context.instance().socket(kind)
    try:
        socket.connect(live.admin)
        await socket.send_multipart(frames)
        async with asyncio.timeout(5):
            answer: list[bytes] = await socket.recv_multipart()
            return answer
    finally:
        socket.close(linger=0)


async def serve_one(live: Running, request_id: str, *, finish: bool = True) -> None:
    """A whole request, by peers over the real socket."""
    gateway, decode = await live.peer("g0|1"), await live.peer("d0|1")
    gateway.send(hello(Role.GATEWAY, "g0", "1", stream_endpoint="ipc://x"))
    decode.send(worker_hello(Role.DECODE, "d0"))
    await decode.next(Welcome)
    decode.send(Beat(load=Load()))
    gateway.send(submit(request_id), b"body")
    await gateway.next(Placed)
    await decode.next(Decode)
    if finish:
        decode.send(
            Ended(request_id=request_id, attempt=1, finish_reason="stop", completion_tokens=3)
        )


async def test_json_is_answered_in_json(live: Running) -> None:
    frames = await exchange(live, zmq.DEALER, [b'{"verb": "status"}'])
    assert len(frames) == 1
    answer = json.loads(frames[0])
    assert answer["ok"] is True
    assert answer["result"]["ready"] is False
    assert answer["result"]["router"] == "r0"


async def test_messagepack_is_answered_in_messagepack(live: Running) -> None:
    question = msgspec.msgpack.encode({"verb": "help", "args": {"verb": "explain"}})
    frames = await exchange(live, zmq.DEALER, [question])
    result = msgspec.msgpack.decode(frames[0])["result"]
    assert result[0]["usage"] == "explain [id=] [list=] [by=total] [limit=20]"


async def test_a_req_client_gets_its_empty_frame_back(live: Running) -> None:
    frames = await exchange(live, zmq.REQ, [b'{"verb": "workers"}'])
    assert json.loads(frames[0]) == {"ok": True, "result": []}


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"{",
        b"{}",
        b'{"verb": 1}',
        b'{"verb": "status", "args": []}',
        b'{"verb": "status", "extra": 1}',
        b'{"verb": "status"} trailing',
        b"[" * 100_000,
        b'{"verb": "a", "args": {"a": ' + b"[" * 100_000,
        b"\xff\xfe\x00",
        b"\x81\xa4verb",
        b"\xc1",
        b"status",
        bytes(1000),
        msgspec.msgpack.encode(["status"]),
        b'{"verb": "\xff"}',
        b"\x81\xa4verb\xa2\xff\xff",
    ],
)
async def test_a_malformed_frame_is_answered_with_how_to_ask(live: Running, frame: bytes) -> None:
    answer = msgspec.json if frame[:1] == b"{" else msgspec.msgpack
    frames = await exchange(live, zmq.DEALER, [frame])
    said = answer.decode(frames[0])
    assert said["ok"] is False
    assert said["error"]["code"] == "invalid_request"
    assert '"verb": "help"' in said["error"]["message"]
    assert (await ask(live.admin, "status")).ok


async def test_more_frames_than_one_are_answered_with_an_error(live: Running) -> None:
    frames = await exchange(live, zmq.DEALER, [b'{"verb": "status"}', b"x", b"y"])
    assert msgspec.msgpack.decode(frames[0])["ok"] is False


@pytest.mark.parametrize(
    ("verb", "args", "code", "says"),
    [
        ("nope", {}, "not_found", NAMES),
        ("", {}, "not_found", NAMES),
        ("__class__", {}, "not_found", NAMES),
        ("status", {"x": 1}, "invalid_request", "status has no argument 'x'; it takes: none"),
        ("explain", {}, "invalid_request", "explain needs 'id'"),
        ("explain", {"id": 7}, "invalid_request", "id must be text"),
        ("explain", {"id": "zzz"}, "not_found", "no request starts with 'zzz'"),
        ("requests", {"limit": 0}, "invalid_request", "between 1 and 1000"),
        ("requests", {"limit": True}, "invalid_request", "whole number"),
        ("requests", {"state": "lost"}, "invalid_request", "queued, placed, decoding, aborting"),
        ("workers", {"role": "gateway"}, "invalid_request", "one of: prefill, decode"),
        (
            "policy",
            {"name": "best"},
            "invalid_request",
            "must be one of: cost, least_loaded, prefix_affinity, round_robin, session_affinity",
        ),
        ("policy", {"remote_prefill": "yes"}, "invalid_request", "one of: auto, always, never"),
        ("limits", {"max_queue": -5}, "invalid_request", "max_queue must be between 0 and 1000000"),
        ("limits", {"ttft_slo_ms": "soon"}, "invalid_request", "must be a whole number"),
        ("limits", {"concurrency": 3}, "invalid_request", "is of one key; name it with key="),
        ("limits", {"key": "k", "weight": 0}, "invalid_request", "between 1 and 1000"),
        ("help", {"verb": "limit"}, "not_found", NAMES),
        ("role", {"worker": "d0"}, "invalid_request", "role needs 'role'"),
        ("role", {"worker": "d0", "role": "pool"}, "invalid_request", "one of: prefill, decode"),
    ],
)
async def test_wrong_arguments_are_named(
    live: Running, verb: str, args: dict[str, Any], code: str, says: str
) -> None:
    answer = await ask(live.admin, verb, args)
    assert not answer.ok
    assert answer.error["code"] == code
    assert says in answer.error["message"]


async def test_help_lists_every_verb_with_its_arguments(live: Running) -> None:
    listed = (await ask(live.admin, "help")).result
    assert ", ".join(verb["verb"] for verb in listed) == NAMES
    assert all(verb["help"] for verb in listed)
    drain = next(verb for verb in listed if verb["verb"] == "drain")
    assert drain["args"][0]["required"] is True


async def test_the_verbs_tell_of_a_request_from_start_to_end(live: Running) -> None:
    await serve_one(live, "abc-123", finish=False)
    rows = (await ask(live.admin, "requests")).result
    assert [(r["request_id"], r["state"], r["decode"]) for r in rows] == [
        ("abc-123", "placed", "d0")
    ]
    worker = (await ask(live.admin, "workers", {"role": "decode"})).result[0]
    assert (worker["name"], worker["state"], worker["kv_tokens_promised"]) == ("d0", "ready", 48)
    assert (await ask(live.admin, "workers", {"role": "prefill"})).result == []
    status = (await ask(live.admin, "status")).result
    assert (status["ready"], status["active"], status["active_max"]) == (True, 1, 8)
    told = (await ask(live.admin, "explain", {"id": "abc"})).result
    assert told["request_id"] == "abc-123"
    by_response_id = (await ask(live.admin, "explain", {"id": "chatcmpl-abc-123"})).result
    assert by_response_id["request_id"] == "abc-123"
    assert "no prefill worker is ready" in " ".join(told["attempts"][0]["sentences"])
    assert "body" not in json.dumps(told)


async def test_the_policy_is_switched_live_and_told(live: Running) -> None:
    before = (await ask(live.admin, "policy")).result
    assert (before["policy"], before["mode"]) == ("cost", "disaggregated")
    assert set(before["policies"]) == set(POLICIES)
    await serve_one(live, "first", finish=False)
    asked = {"name": "round_robin", "remote_prefill": "never"}
    after = (await ask(live.admin, "policy", asked)).result
    assert (after["policy"], after["remote_prefill"]) == ("round_robin", "never")
    status = (await ask(live.admin, "status")).result
    assert (status["policy"], status["remote_prefill"]) == ("round_robin", "never")
    gateway = live.peers[0]
    gateway.send(submit("second"), b"body")
    await gateway.next(Placed)
    told = {
        name: (await ask(live.admin, "explain", {"id": name})).result["attempts"][0]
        for name in ("first", "second")
    }
    assert [told[name]["policy"] for name in told] == ["cost", "round_robin"]
    assert "remote_prefill is never" in " ".join(told["second"]["sentences"])


async def test_an_ambiguous_prefix_lists_what_it_may_mean(live: Running) -> None:
    await serve_one(live, "abc-1")
    gateway = live.peers[0]
    gateway.send(submit("abc-2"), b"body")
    await gateway.next(Placed)
    answer = await ask(live.admin, "explain", {"id": "abc"})
    assert "2 requests start with 'abc': abc-1, abc-2" in answer.error["message"]
    assert (await ask(live.admin, "explain", {"id": "abc-1"})).ok


async def test_many_clients_at_once_each_get_their_own_answer(live: Running) -> None:
    questions = [json.dumps({"verb": f"v{i}"}).encode() for i in range(40)]
    answers = await asyncio.gather(*(exchange(live, zmq.REQ, [q]) for q in questions))
    for i, answer in enumerate(answers):
        assert f"'v{i}'" in json.loads(answer[0])["error"]["message"]


async def test_limits_are_shown_and_set_live(live: Running) -> None:
    before = (await ask(live.admin, "limits")).result
    assert before["limits"]["max_queue"] == 1024
    asked = {"max_queue": 5, "ttft_slo_ms": 900, "key": "k1", "tokens_per_min": 6000}
    after = (await ask(live.admin, "limits", asked)).result
    assert (after["limits"]["max_queue"], after["limits"]["ttft_slo_ms"]) == (5, 900)
    assert after["set_here"]["k1"]["tokens_per_min"] == 6000
    assert (await ask(live.admin, "status")).result["queued_max"] == 5
    await ask(live.admin, "limits", {"key": "k1", "concurrency": 2})
    both = (await ask(live.admin, "limits", {"key": "k1"})).result["set_here"]["k1"]
    assert (both["tokens_per_min"], both["concurrency"]) == (6000, 2)
    gone = (await ask(live.admin, "limits", {"key": "k1", "reset": True})).result
    assert gone["set_here"] == {}
