"""A gateway with 256 descriptors and more clients: each is answered; the fleet notices nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import psutil
import pytest

from tests.rigs.fleet import Fleet, fleet
from tests.rigs.load import Ask, Load, faults_of

pytestmark = pytest.mark.long

LIMIT = 256
CLIENTS = 400
HELD_SECONDS = 2.0
ANSWER_SECONDS = 20.0
QUESTION = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Crowd:
    """Clients that ask once and stay connected."""

    port: int
    answers: Counter[str] = field(default_factory=Counter)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def ask(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                self.writers.append(writer)
                writer.write(QUESTION)
                head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, EOFError, TimeoutError) as error:
            self.answers[type(error).__name__] += 1
            return
        self.answers[head.split()[1].decode()] += 1
        if head.startswith(b"HTTP/1.1 503"):
            assert b"\r\nRetry-After: 1\r\n" in head
            writer.close()

    async def leave(self) -> None:
        for writer in self.writers:
            writer.close()
        await asyncio.gather(*(w.wait_closed() for w in self.writers), return_exceptions=True)


def limited() -> tuple[str, ...]:
    return ("sh", "-c", f'ulimit -n {LIMIT} && exec "$@"', "sh")


async def answer_now(running: Fleet) -> str:
    """What one more client is answered."""
    client = Crowd(running.port)
    await client.ask()
    await client.leave()
    return "".join(client.answers)


@pytest.mark.timeout(180)
async def test_more_clients_than_descriptors_are_all_answered() -> None:
    with fleet("--engine", "sim", before=limited()) as running:
        await asyncio.to_thread(running.wait_ready)
        gateway = running.children()["g0"]
        assert gateway.rlimit(psutil.RLIMIT_NOFILE) == (LIMIT, LIMIT)
        assert "descriptors.short" in running.log("g0"), "it says at start what it lacks"
        streams = Load(running.url, rate=1.0, ask=Ask(max_tokens=1024))
        streams_before = [asyncio.create_task(streams.one()) for _ in range(4)]  # noqa: TID251
        async with asyncio.timeout(ANSWER_SECONDS):
            while running.ctl("status")["active"] < 4:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
        late = Ask(prompt_tokens=(25_000, 25_000), max_tokens=1)
        meanwhile = Load(running.url, rate=1.0, ask=late)
        crowd = Crowd(running.port)
        clients = (crowd.ask() for _ in range(CLIENTS))
        await asyncio.gather(*clients, *(meanwhile.one() for _ in range(8)))
        assert set(crowd.answers) == {"200", "503"}, crowd.answers
        assert crowd.answers["200"] > LIMIT // 4
        assert gateway.num_fds() < LIMIT - 32
        before = gateway.cpu_times()
        assert await answer_now(running) == "503"
        await meanwhile.one()
        assert faults_of(meanwhile.answers) == []
        assert all(
            "too many connections" in answer.error for answer in meanwhile.answers if answer.refused
        )
        assert len(meanwhile.answers) == 9
        await asyncio.sleep(HELD_SECONDS)
        after = gateway.cpu_times()
        spent = after.user + after.system - before.user - before.system
        assert spent < HELD_SECONDS / 2, "it does not spin"
        await asyncio.gather(*streams_before)
        assert faults_of(streams.answers) == []
        assert [answer.refused for answer in streams.answers] == [False] * 4
        await crowd.leave()
        async with asyncio.timeout(ANSWER_SECONDS):
            while await answer_now(running) != "200":  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
