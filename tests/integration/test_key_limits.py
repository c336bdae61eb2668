"""Limits of a key hold over all gateways, since the router counts."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.processes import add_key

PER_MINUTE = 4
CONNECTIONS = 16
LONG = 4_000


class Keys:
    """A keys file and the keys in it, by tenant."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.plain = add_key(self.file, "plain")
        self.rated = add_key(self.file, "rated", "--requests-per-min", str(PER_MINUTE))
        self.single = add_key(self.file, "single", "--concurrency", "1")
        self.batch = add_key(self.file, "batch", "--priority", "batch")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.json")


@pytest.fixture(scope="module")
def gateways(keys: Keys) -> Iterator[Fleet]:
    flags = ("--engine", "sim", "--gateways", "2", "--keys", str(keys.file))
    with fleet(*flags) as running:
        yield running.wait_ready()


class Client:
    """One kept connection, and so one gateway."""

    def __init__(self, running: Fleet, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
        self._connection.connect()
        self._key = key
        self.port: int = self._connection.sock.getsockname()[1]

    def ask(self, tokens: int = 1, **fields: Any) -> http.client.HTTPResponse:
        """The answer, its body unread."""
        body = {"model": "baton-tiny", "prompt": "hello", "max_tokens": tokens} | fields
        about = {"authorization": f"Bearer {self._key}"}
        headers = about | {"content-type": "application/json"}
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()


def served_by(running: Fleet, name: str) -> set[int]:
    """Client ports of the connections that this gateway holds."""
    connections = running.children()[name].net_connections("tcp")
    return {
        connection.raddr.port
        for connection in connections
        if connection.status == psutil.CONN_ESTABLISHED
    }


@pytest.fixture
def pairs(gateways: Fleet) -> Iterator[Any]:
    """Makes clients of a key: those at g0 and those at g1, some of each."""
    made: list[Client] = []

    def connect(key: str) -> tuple[list[Client], list[Client]]:
        mine = [Client(gateways, key) for _ in range(CONNECTIONS)]
        made.extend(mine)
        ports = {client.port for client in mine}
        wait_until(
            "all are accepted",
            lambda: ports <= served_by(gateways, "g0") | served_by(gateways, "g1"),
        )
        first = served_by(gateways, "g0")
        at_first = [client for client in mine if client.port in first]
        at_second = [client for client in mine if client.port not in first]
        assert at_first
        assert at_second
        return at_first, at_second

    yield connect
    for client in made:
        client.close()


def refusal(answer: http.client.HTTPResponse) -> str:
    """What a 429 with a time to come back says."""
    told = json.loads(answer.read())
    assert answer.status == 429
    assert int(answer.headers["Retry-After"]) >= 1
    message: str = told["error"]["message"]
    return message


def test_requests_per_minute_hold_over_both_gateways(keys: Keys, pairs: Any) -> None:
    first, second = pairs(keys.rated)
    served, refused = [], []
    for client in [client for pair in zip(first, second, strict=False) for client in pair] * 4:
        answer = client.ask()
        if answer.status == 200:
            answer.read()
            served.append(client)
        else:
            refused.append(refusal(answer))
        if len(served) + len(refused) == 3 * PER_MINUTE:
            break
    assert len(served) == PER_MINUTE
    assert {client in first for client in served} == {True, False}
    assert all("minute" in told for told in refused), refused


def test_concurrency_holds_over_both_gateways(gateways: Fleet, keys: Keys, pairs: Any) -> None:
    (holder, *_), (other, *_) = pairs(keys.single)
    running = holder.ask(LONG, stream=True, ignore_eos=True)
    assert running.status == 200
    refusal(other.ask())
    holder.close()
    running.close()
    wait_until("the first is over", lambda: not gateways.ctl("requests"))
    answer = other.ask()
    answer.read()
    assert answer.status == 200


@pytest.mark.parametrize(
    ("tenant", "asked", "got"),
    [
        ("plain", {}, "standard"),
        ("plain", {"priority": -1}, "standard"),
        ("batch", {"priority": -1}, "batch"),
    ],
)
def test_the_router_knows_tenant_and_class_and_the_key_bounds_what_a_request_asks_for(
    gateways: Fleet, keys: Keys, pairs: Any, tenant: str, asked: dict[str, int], got: str
) -> None:
    key = {"plain": keys.plain, "batch": keys.batch}[tenant]
    (client, *_), _ = pairs(key)
    running = client.ask(LONG, stream=True, ignore_eos=True, **asked)
    assert running.status == 200
    (row,) = gateways.ctl("requests")
    assert (row["tenant"], row["priority"], row["key_id"]) == (tenant, got, key.split("_")[1])
    client.close()
    running.close()
    wait_until("it is over", lambda: not gateways.ctl("requests"))
