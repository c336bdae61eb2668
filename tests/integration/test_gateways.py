"""Two gateways on one port, and a fleet with keys."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.processes import add_key, said

JSON = {"content-type": "application/json"}
TOKENS = 250
STREAMS = 16


@pytest.fixture
def two_gateways() -> Iterator[Fleet]:
    with fleet("--engine", "sim", "--gateways", "2") as running:
        yield running.wait_ready()


class Stream:
    """One streamed completion, read as it comes."""

    def __init__(self, running: Fleet) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        body = {"model": "baton-tiny", "prompt": "hello", "max_tokens": TOKENS, "stream": True}
        self._connection.request("POST", "/v1/completions", json.dumps(body), JSON)
        self.port: int = self._connection.sock.getsockname()[1]
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200

    def rest(self) -> str:
        """All that still comes, as far as it comes."""
        try:
            return self._answer.read().decode()
        except (http.client.IncompleteRead, ConnectionError):
            return ""
        finally:
            self._connection.close()


def served_by(process: psutil.Process, streams: list[Stream]) -> set[int]:
    """Client ports of the connections that this gateway holds."""
    established = [
        connection
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED
    ]
    ports = {stream.port for stream in streams}
    return {connection.raddr.port for connection in established} & ports


def test_a_killed_gateway_ends_only_its_own_streams(two_gateways: Fleet) -> None:
    streams = [Stream(two_gateways) for _ in range(STREAMS)]
    gateways = {name: p for name, p in two_gateways.children().items() if name[0] == "g"}
    assert set(gateways) == {"g0", "g1"}
    lost, kept = (served_by(gateways[name], streams) for name in ("g0", "g1"))
    assert lost
    assert kept
    assert len(lost) + len(kept) == STREAMS
    old = gateways["g0"]
    old.kill()
    for stream in streams:
        assert stream.rest().endswith("data: [DONE]\n\n") is (stream.port in kept)
    wait_until("the dead gateway's requests are gone", lambda: not two_gateways.ctl("requests"))
    wait_until("g0 is started again", lambda: two_gateways.children().get("g0") not in (None, old))
    wait_until("both gateways are known", lambda: two_gateways.ctl("status")["gateways"] == 2)
    assert Stream(two_gateways).rest().endswith("data: [DONE]\n\n")


def test_a_stopped_gateway_leaves_the_port_to_the_other(two_gateways: Fleet) -> None:
    first = two_gateways.children()["g0"]
    streams = [Stream(two_gateways) for _ in range(STREAMS)]
    mine = served_by(first, streams)
    assert mine
    first.terminate()
    wait_until("g0 drains", lambda: "daemon.stopping" in two_gateways.log("g0"))
    for stream in streams:
        assert stream.rest().endswith("data: [DONE]\n\n")
    assert Stream(two_gateways).rest().endswith("data: [DONE]\n\n")


def test_a_fleet_with_keys_serves_who_has_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = add_key(keys, "shop")
    assert re.fullmatch(r"bk_[0-9a-f]{12}_[0-9a-f]{64}", key)
    with fleet("--engine", "sim", "--host", "0.0.0.0", "--keys", str(keys)) as running:
        running.wait_ready()
        assert "$BATON_KEY" in "\n".join(running.lines)

        def complete(headers: dict[str, str]) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
            body = json.dumps({"model": "baton-tiny", "prompt": "x", "max_tokens": 1})
            connection.request("POST", "/v1/completions", body, JSON | headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

        bearer = {"authorization": f"Bearer {key}"}
        assert complete(bearer) == 200
        assert complete({}) == 401
        assert key[-64:] not in running.log("g0") + running.log("r0")
        key_id = key.split("_")[1]
        said("keys", "revoke", "--file", str(keys), key_id)
        wait_until("the revoked key is refused", lambda: complete(bearer) == 401)


def begun(running: Fleet) -> str:
    """The id of a resumable stream whose client left after two events."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    body = {"model": "baton-tiny", "prompt": "hello", "max_tokens": TOKENS, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), JSON | {"x-resumable": "true"})
    answer = connection.getresponse()
    assert event_numbers(b"".join(answer.readline() for _ in range(6))) == [1, 2]
    connection.close()
    stream = answer.getheader("x-stream-id")
    assert stream
    return stream


def event_numbers(body: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"^id: (\d+)$", body, re.MULTILINE)]


def resumed(
    running: Fleet, gateway: psutil.Process, stream: str, last: int
) -> http.client.HTTPResponse:
    """GET /v1/streams/{id} at one gateway of those on the port; the kernel chooses, so this tries
    until it chooses that one."""
    for _ in range(100):
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        connection.connect()
        headers = {"Last-Event-ID": str(last)}
        connection.request("GET", "/live")
        connection.getresponse().read()
        if accepted_by(gateway, connection.sock.getsockname()[1]):
            connection.request("GET", f"/v1/streams/{stream}", headers=headers)
            return connection.getresponse()
        connection.close()
    raise AssertionError("that gateway accepts no connection")


def accepted_by(gateway: psutil.Process, client_port: int) -> bool:
    remotes = [connection.raddr for connection in gateway.net_connections("tcp")]
    return any(remote[1:] == (client_port,) for remote in remotes)


def error_code(answer: http.client.HTTPResponse) -> str:
    code: str = json.loads(answer.read())["error"]["code"]
    return code


def test_a_stream_is_resumed_at_any_gateway(two_gateways: Fleet) -> None:
    stream = begun(two_gateways)
    gateways = two_gateways.children()
    owner = stream.rpartition(".")[2]
    other = {"g0": "g1", "g1": "g0"}[owner]
    for name in (other, owner, other):
        answer = resumed(two_gateways, gateways[name], f"cmpl-{stream}", 2)
        assert (answer.status, answer.getheader("x-stream-id")) == (200, stream)
        body = answer.read()
        numbers = event_numbers(body)
        assert numbers == list(range(3, len(numbers) + 3))
        assert len(numbers) > TOKENS / 2
        assert body.endswith(b"data: [DONE]\n\n")
    late = resumed(two_gateways, gateways[other], stream, 10_000)
    assert (late.status, error_code(late)) == (409, "stream_conflict")


def test_a_stream_ends_with_the_gateway_that_has_it(two_gateways: Fleet) -> None:
    """Its client sees an error and no end, also where another gateway passes the stream on."""
    stream = begun(two_gateways)
    gateways = two_gateways.children()
    owner = stream.rpartition(".")[2]
    other = gateways[{"g0": "g1", "g1": "g0"}[owner]]
    answer = resumed(two_gateways, other, stream, 2)
    assert answer.status == 200
    gateways[owner].kill()
    gateways[owner].wait(10)  # until then the kernel may give it connections, which are reset
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    lost = resumed(two_gateways, other, stream, 2)
    assert (lost.status, error_code(lost)) == (404, "not_found")
