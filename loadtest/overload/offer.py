"""Open-loop HTTP load: requests come when they come, however slow the answers are."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import NamedTuple

import aiohttp

TIMEOUT_SECONDS = 120.0
FIRST_BYTES = b"data: "


@dataclass(frozen=True, slots=True)
class Load:
    """`rate`: requests/s, Poisson. `prompt_chars`: mean length, evenly 0.5 to 1.5 of it. `obey`:
    share of the clients that ask again after exactly the `Retry-After` that they were told."""

    url: str
    model: str
    rate: float
    seconds: float
    prompt_chars: int
    output_tokens: int
    obey: float = 0.0
    seed: int = 1


@dataclass(slots=True)
class Outcome:
    """One try. Times are seconds since it was sent, None until then; `at` is when that was, since
    the load began. `again`: a second try, by appointment."""

    at: float
    status: int = 0
    code: str = ""
    first: float | None = None
    done: float | None = None
    refused_in: float | None = None
    retry_after: float | None = None
    again: bool = False


class Offered(NamedTuple):
    """`live_ms`: round trips of `GET /live` meanwhile, which ask only the gateway: what the machine
    and the client cost, to hold refusals against."""

    outcomes: list[Outcome]
    live_ms: list[float]


async def offer(load: Load) -> Offered:
    """Ends when every request has."""
    clients = _Clients(load)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(load.url, timeout=timeout, connector=connector) as session,
        asyncio.TaskGroup() as group,
    ):
        dice = random.Random(load.seed)
        at = 0.0
        while at < load.seconds:
            await asyncio.sleep(at - clients.now)
            group.create_task(clients.client(session, _Asked(dice, load)))
            group.create_task(clients.look(session))
            at += dice.expovariate(load.rate)
    return Offered(clients.outcomes, clients.live_ms)


class _Asked:
    """What one client asks, decided before anything is sent, so that a seed is one load."""

    def __init__(self, dice: random.Random, load: Load) -> None:
        length = round(load.prompt_chars * dice.uniform(0.5, 1.5))
        self.body = {
            "model": load.model,
            "prompt": "".join(dice.choices("abcdefgh ", k=max(1, length))),
            "max_tokens": load.output_tokens,
            "stream": True,
        }
        self.obeys = dice.random() < load.obey


class _Clients:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._began = time.monotonic()
        self.outcomes: list[Outcome] = []
        self.live_ms: list[float] = []

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    async def client(self, session: aiohttp.ClientSession, asked: _Asked) -> None:
        told = await self._try(session, asked, again=False)
        if asked.obeys and told.retry_after is not None:
            await asyncio.sleep(told.retry_after)
            await self._try(session, asked, again=True)

    async def look(self, session: aiohttp.ClientSession) -> None:
        began = self.now
        async with session.get("/live"):
            self.live_ms.append((self.now - began) * 1000)

    async def _try(self, session: aiohttp.ClientSession, asked: _Asked, *, again: bool) -> Outcome:
        outcome = Outcome(self.now, again=again)
        self.outcomes.append(outcome)
        try:
            async with session.post("/v1/completions", json=asked.body) as response:
                outcome.status = response.status
                if response.status != 200:
                    await self._refused(outcome, response)
                    return outcome
                async for line in response.content:
                    if outcome.first is None and line.startswith(FIRST_BYTES):
                        outcome.first = self.now - outcome.at
                    if line.startswith(b"data: [DONE]"):
                        outcome.done = self.now - outcome.at
        except (aiohttp.ClientError, TimeoutError) as error:
            outcome.code = type(error).__name__
        return outcome

    async def _refused(self, outcome: Outcome, response: aiohttp.ClientResponse) -> None:
        outcome.refused_in = self.now - outcome.at
        told = response.headers.get("Retry-After")
        outcome.retry_after = float(told) if told is not None else None
        answer = await response.json()
        outcome.code = str(answer.get("error", {}).get("code", ""))
