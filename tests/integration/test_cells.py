"""Two cells behind one gateway: one is killed, the streams of the other are untouched, those of the
lost one go on, its tenants are served, and their limits hold."""

import asyncio
import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.gateway.cells import rendezvous
from tests.integration.test_router_loss import SIM, SLOW, STEP_MS, until
from tests.rigs.cells import CELLS, keep_down, logged, requests_of
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.load import Ask, Load, faults_of
from tests.rigs.processes import add_key

pytestmark = pytest.mark.timeout(300)
SECONDS = 4.0
PER_MINUTE = 240
LIMIT_SECONDS = 15.0


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module")
def limited(keys_file: Path) -> dict[str, str]:
    """A key whose tenant belongs to each cell, by the cell."""
    found: dict[str, str] = {}
    for n in range(20):
        capacities = dict.fromkeys(CELLS, 1.0)
        cell = rendezvous.order(f"tenant t{n}".encode(), capacities)[0]
        if cell not in found:
            limit = ("--requests-per-min", str(PER_MINUTE))
            found[cell] = add_key(keys_file, f"t{n}", *limit)
    return found


@pytest.fixture
def cells() -> Iterator[Fleet]:
    with fleet(*SIM, "--routers", "2", "--cells", "2", env=SLOW) as running:
        yield running.wait_ready()


def test_a_lost_cell_harms_nobody(cells: Fleet) -> None:
    ask = Ask(prompt_tokens=(600, 600), max_tokens=round(SECONDS * 1000 / STEP_MS))
    before: dict[str, set[str]] = {}

    async def play() -> list[Any]:
        load = Load(cells.url, rate=20 / SECONDS, ask=ask)
        async with asyncio.TaskGroup() as group:
            done = group.create_task(load.run())
            await until(lambda: len(load.running) >= 12)
            await until(lambda: all(len(requests_of(cells, cell)) >= 3 for cell in CELLS))
            before.update({cell: requests_of(cells, cell) for cell in CELLS})
            await keep_down(cells, "c1", 6.0)
            started = load.started
            await until(lambda: load.started >= started + 10)
            load.stop()
        return done.result()

    answers = asyncio.run(play())
    assert faults_of(answers) == []
    assert not any(answer.refused for answer in answers)
    recovered = {line["request_id"] for line in logged(cells, "request.recovered")}
    spilled = logged(cells, "request.spilled")
    assert recovered & before["c1"], "streams of the lost cell went on"
    assert not recovered & before["c0"], "streams of the other one are untouched"
    assert {line["request_id"] for line in spilled} >= recovered & before["c1"]
    assert any(line["sentence"] == "cell c1 is lost; c0 serves the request" for line in spilled)
    gaps = sorted(answer.gap for answer in answers)
    print(f"{len(answers)} streams, {len(spilled)} spilled, longest gaps {gaps[-3:]}")


def test_its_cell_is_named_where_an_operator_looks(cells: Fleet) -> None:
    status = cells.told("status", "--cell", "c1")
    assert status.startswith("cell c1\n")
    text = http_get(cells, "/metrics")
    assert re.search(r'baton_gateway_cell_serves\{cell="c1",model="baton-tiny"\} 1\.0', text)
    assert 'baton_gateway_cell_requests_total{cell="c0",why="home"}' in text
    assert "c1/r0" in "\n".join(cells.lines)


def http_get(running: Fleet, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def served(running: Fleet, key: str, seconds: float) -> int:
    """How many of the requests that come in this time are served."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    about = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    body = json.dumps({"model": "baton-tiny", "prompt": "hello", "max_tokens": 1})
    ends, times = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        connection.request("POST", "/v1/completions", body, about)
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (200, 429), answer.status
        times += answer.status == 200
    return times


@pytest.mark.long
def test_a_keys_limit_holds_when_its_cell_is_lost(keys_file: Path, limited: dict[str, str]) -> None:
    """What it had saved up is used up before, in its own cell."""
    flags = ("--engine", "sim", "--cells", "2", "--keys", str(keys_file))
    with fleet(*flags) as running:
        running.wait_ready()
        key, expected = limited["c1"], PER_MINUTE * LIMIT_SECONDS / 60
        served(running, key, PER_MINUTE / 60)
        wait_until("it has used up its minute", lambda: served(running, key, 2.0) <= 10, 60.0)
        at_home = served(running, key, LIMIT_SECONDS)

        async def lose() -> int:
            async with asyncio.TaskGroup() as group:
                group.create_task(keep_down(running, "c1", LIMIT_SECONDS + 2.0))
                await until(lambda: bool(logged(running, "router.lost")))
                return await asyncio.to_thread(served, running, key, LIMIT_SECONDS)

        away = asyncio.run(lose())
    minute = PER_MINUTE
    print(f"{at_home} at home and {away} in the other cell of {expected:.0f} in {LIMIT_SECONDS} s")
    assert abs(at_home - expected) <= 0.05 * minute
    assert abs(away - expected) <= 0.05 * minute + 1
