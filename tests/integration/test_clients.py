"""Clients that leave, in each phase, and clients that do not read: the workers are free soon after
and nobody else notices."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until

SLOW_PREFILL = {
    "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "100",
    "BATON_ENGINE__MAX_NUM_BATCHED_TOKENS": "128",
    "BATON_ROUTER__MAX_ACTIVE": "1",
}
FAST_DECODE = {
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "0.2",
    "BATON_GATEWAY__SLOW_CLIENT_MS_MAX": "500",
    "BATON_GATEWAY__BODY_MS_MAX": "300",
}
JSON = {"content-type": "application/json"}
PROMPT = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture(scope="module")
def slow_prefill() -> Iterator[Fleet]:
    with fleet("--engine", "sim", env=SLOW_PREFILL) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def fast_decode() -> Iterator[Fleet]:
    with fleet("--engine", "sim", env=FAST_DECODE) as running:
        yield running.wait_ready()


def request(max_tokens: int, prompt: str = PROMPT) -> bytes:
    body = {"model": "baton-tiny", "prompt": prompt, "max_tokens": max_tokens, "stream": True}
    data = json.dumps(body | {"return_token_ids": True, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + data


def connect(running: Fleet, data: bytes, receive_bytes: int = 0) -> socket.socket:
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(30)
    client.connect(("127.0.0.1", running.port))
    client.sendall(data)
    return client


def states(running: Fleet) -> list[str]:
    return sorted(request["state"] for request in running.ctl("requests"))


def freed(running: Fleet) -> bool:
    if running.ctl("requests"):
        return False
    workers = running.ctl("workers")
    return all(worker["kv_used"] == 0 and worker["running"] == 0 for worker in workers)


def serves(running: Fleet) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    body = json.dumps({"model": "baton-tiny", "prompt": "x", "max_tokens": 2})
    connection.request("POST", "/v1/completions", body, JSON)
    answer = connection.getresponse()
    answer.read()
    return answer.status == 200


def test_leaving_while_queued_and_while_prefilling_frees_both(slow_prefill: Fleet) -> None:
    prefilling = connect(slow_prefill, request(50))
    wait_until("the first is placed", lambda: len(states(slow_prefill)) == 1)
    queued = connect(slow_prefill, request(50))
    wait_until("the second waits", lambda: "queued" in states(slow_prefill))
    queued.close()
    wait_until("the waiting one is gone", lambda: len(states(slow_prefill)) == 1)
    prefilling.close()
    wait_until("nothing is held", lambda: freed(slow_prefill))
    assert serves(slow_prefill)


def test_leaving_while_decoding_frees_the_worker(slow_prefill: Fleet) -> None:
    client = connect(slow_prefill, request(4_000, "short"))
    assert b"200 OK" in client.recv(4_096)
    client.close()
    wait_until("nothing is held", lambda: freed(slow_prefill))


@pytest.mark.parametrize("part", [0.1, 0.9])
def test_leaving_before_the_request_is_whole_starts_nothing(
    slow_prefill: Fleet, part: float
) -> None:
    wait_until("nothing is held", lambda: freed(slow_prefill))
    data = request(10)
    client = connect(slow_prefill, data[: int(len(data) * part)])
    client.close()
    assert slow_prefill.ctl("requests") == []
    assert serves(slow_prefill)


def test_a_body_that_stops_half_way_is_answered_408(fast_decode: Fleet) -> None:
    client = connect(fast_decode, request(10)[:-5])
    assert client.recv(4_096).startswith(b"HTTP/1.1 408")
    client.close()


def test_a_reader_that_stops_is_cut_and_its_worker_freed_while_others_go_on(
    fast_decode: Fleet,
) -> None:
    stopped = connect(fast_decode, request(7_000, "slow"), receive_bytes=4_096)
    other = http.client.HTTPConnection("127.0.0.1", fast_decode.port, timeout=60)
    other.request("POST", "/v1/completions", request(3_000, "other").split(b"\r\n\r\n", 1)[1], JSON)
    answer = other.getresponse().read()
    assert answer.endswith(b"data: [DONE]\n\n")
    assert answer.count(b"data: {") >= 3_000
    wait_until("the stopped reader is cut", lambda: freed(fast_decode), 20)
    got = b""
    try:
        while data := stopped.recv(65_536):
            got += data
    except ConnectionError:
        pass
    assert b"[DONE]" not in got
    assert "slow client" in fast_decode.log("g0")
