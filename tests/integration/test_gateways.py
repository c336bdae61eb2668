"""Two gateways on one port, and a fleet with keys."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fleet.running import Fleet, fleet, wait_until

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
        self._connection.request("POST", "/v1/completions", json.dumps(body))
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
    baton = [sys.executable, "-m", "services.cli"]
    made = subprocess.run(
        [*baton, "keys", "add", "--file", str(keys), "--tenant", "shop"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    key = made.stdout.strip()
    assert re.fullmatch(r"bk_[0-9a-f]{12}_[0-9a-f]{64}", key)
    with fleet("--engine", "sim", "--host", "0.0.0.0", "--keys", str(keys)) as running:
        running.wait_ready()
        assert "$BATON_KEY" in "\n".join(running.lines)

        def complete(headers: dict[str, str]) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
            body = json.dumps({"model": "baton-tiny", "prompt": "x", "max_tokens": 1})
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

        bearer = {"authorization": f"Bearer {key}"}
        assert complete(bearer) == 200
        assert complete({}) == 401
        assert key[-64:] not in running.log("g0") + running.log("r0")
        key_id = key.split("_")[1]
        subprocess.run([*baton, "keys", "revoke", "--file", str(keys), key_id], check=True)
        wait_until("the revoked key is refused", lambda: complete(bearer) == 401)
