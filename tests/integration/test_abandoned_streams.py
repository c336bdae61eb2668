"""A client that starts many resumable streams and leaves does not keep the fleet from others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from tests.rigs.fleet import Fleet, fleet

pytestmark = pytest.mark.long

STREAMS = 256
SLOTS = 16
SHARE = 64
LONG = {"model": "baton-tiny", "prompt": "hello", "max_tokens": 3_000, "stream": True}
SHORT = {"model": "baton-tiny", "prompt": "hello", "max_tokens": 4}
SERVED_SECONDS = 3.0


def new_key(file: Path, tenant: str) -> dict[str, str]:
    command = [sys.executable, "-m", "services.cli", "keys", "add", "--file", str(file)]
    made = subprocess.run(
        [*command, "--tenant", tenant], capture_output=True, text=True, check=True
    )
    return {"authorization": f"Bearer {made.stdout.strip()}"}


async def begin_and_leave(running: Fleet, key: dict[str, str]) -> list[int]:
    """The statuses; a request that is still held when the others began has none yet (0)."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=key) as session:

        async def one() -> int:
            headers = {"x-resumable": "true"}
            url = f"{running.url}/v1/completions"
            try:
                async with asyncio.timeout(10.0):
                    answer = await session.post(url, json=LONG, headers=headers)
                    return answer.status
            except TimeoutError:
                return 0

        return list(await asyncio.gather(*[one() for _ in range(STREAMS)]))


async def seconds_of_plain_requests(running: Fleet, key: dict[str, str]) -> list[float]:
    async with aiohttp.ClientSession(headers=key) as session:

        async def one() -> float:
            began = time.monotonic()
            async with session.post(f"{running.url}/v1/completions", json=SHORT) as answer:
                assert answer.status == 200, await answer.text()
                assert (await answer.json())["usage"]["completion_tokens"] == 4
            return time.monotonic() - began

        return list(await asyncio.gather(*[one() for _ in range(8)]))


def test_another_key_is_served_at_once_when_many_streams_were_left(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    greedy, other = new_key(file, "greedy"), new_key(file, "other")
    env = {"BATON_ENGINE__MAX_NUM_SEQS": str(SLOTS), "BATON_FLEET__DRAIN_MS": "1000"}
    with fleet("--engine", "sim", "--keys", str(file), env=env) as running:
        running.wait_ready()
        statuses = asyncio.run(begin_and_leave(running, greedy))
        assert statuses.count(200) == SLOTS
        assert statuses.count(429) == STREAMS - SHARE
        took = asyncio.run(seconds_of_plain_requests(running, other))
        assert max(took) < SERVED_SECONDS, took
        totals = running.ctl("status")["totals"]
        assert totals["submitted"] > SHARE + len(took), "those that made room go on later"
        assert running.stop() == 0
