"""The health daemon is killed in the middle of everything: nobody else notices."""

from __future__ import annotations

import asyncio
import http.client
import signal
from typing import Any

import openai
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = pytest.mark.timeout(180)
TOKENS = 60
STREAMS = 6
ENV = {"BATON_ENGINE__SIM__DECODE_STEP_MS": "50", "BATON_HEALTH__CANARY_INTERVAL_S": "0.2",
       "BATON_HEALTH__INTERVAL_MS": "200"}  # fmt: skip


class Texts:
    """One stream for each number; the same number is the same text."""

    def __init__(self, running: Fleet) -> None:
        self._api = openai.AsyncOpenAI(
            base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=60
        )
        self.begun = 0

    async def one(self, number: int) -> str:
        body: dict[str, Any] = {"model": "baton-tiny", "max_tokens": TOKENS, "stream": True}
        text = ""
        async for chunk in await self._api.completions.create(prompt=f"{number} " * 90, **body):
            self.begun += not text
            text += chunk.choices[0].text
        return text

    async def all(self) -> list[str]:
        return list(await asyncio.gather(*(self.one(number) for number in range(STREAMS))))


def metrics(running: Fleet) -> str:
    """Empty while nobody serves them."""
    connection = http.client.HTTPConnection("127.0.0.1", running.health_port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


async def kill_amid(running: Fleet) -> tuple[list[str], list[str]]:
    """What the streams said that ran meanwhile, and what those said that began in its absence."""
    texts = Texts(running)
    async with asyncio.TaskGroup() as group:
        before = group.create_task(texts.all())
        await asyncio.to_thread(wait_until, "all streams run", lambda: texts.begun == STREAMS, 30.0)
        running.children()["h0"].send_signal(signal.SIGKILL)
        await asyncio.to_thread(running.wait_for_line, r"h0: (exited|was killed|died)", 10.0)
        assert not before.done(), "it died while they ran"
        assert (await asyncio.to_thread(running.ctl, "status"))["ready"]
        after = group.create_task(texts.all())
    return before.result(), after.result()


def test_streams_requests_and_the_admin_socket_do_without_it_and_it_comes_back() -> None:
    with fleet("--engine", "sim", env=ENV) as running:
        running.wait_ready()
        wait_until("canaries run", lambda: 'probe="canary:d0"} 0.0' in metrics(running), 30.0)
        first = running.children()["h0"].pid
        before, after = asyncio.run(kill_amid(running))
        assert before == after, "the same prompts give the same text, token for token"
        assert {len(text) for text in before} == {TOKENS}
        totals = running.ctl("status")["totals"]
        assert (totals["failed"], totals["submitted"]) == (0, 2 * STREAMS), "canaries are none"
        (pair,) = running.ctl("pairs")
        assert (pair["state"], pair["unreachable_s"]) == ("closed", None)
        wait_until("health is back", lambda: "baton_worker_requests" in metrics(running), 30.0)
        assert running.children()["h0"].pid != first
        wait_until("canaries run", lambda: 'probe="canary:d0"} 0.0' in metrics(running), 30.0)
