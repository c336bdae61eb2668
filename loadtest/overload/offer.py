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
class OfferedLoad:
    """An open-loop load."""

    url: str
    model: str
    #: Requests per second, Poisson.
    rate: float
    seconds: float
    #: Mean length; lengths are uniform between 0.5 and 1.5 of it.
    prompt_chars: int
    output_tokens: int
    #: Share of the clients that ask again after exactly the `Retry-After` of a refusal.
    obey: float = 0.0
    seed: int = 1


@dataclass(slots=True)
class TryOutcome:
    """One try. Times are seconds since it was sent, None until they are reached."""

    #: When it was sent, in seconds since the start of the load.
    at: float
    status: int = 0
    code: str = ""
    first: float | None = None
    done: float | None = None
    refused_in: float | None = None
    retry_after: float | None = None
    #: A second try, after `Retry-After`.
    again: bool = False


class Offered(NamedTuple):
    """The result of a load."""

    outcomes: list[TryOutcome]
    #: Round trips of `GET /live` during the load. Only the gateway answers them, so they show what
    #: machine and client cost.
    live_ms: list[float]


async def offer(load: OfferedLoad) -> Offered:
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
            group.create_task(clients.client(session, _Request(dice, load)))
            group.create_task(clients.probe_live(session))
            at += dice.expovariate(load.rate)
    return Offered(clients.outcomes, clients.live_ms)


class _Request:
    """One client's request, drawn before anything is sent, so that a seed gives one load."""

    def __init__(self, dice: random.Random, load: OfferedLoad) -> None:
        length = round(load.prompt_chars * dice.uniform(0.5, 1.5))
        self.body = {
            "model": load.model,
            "prompt": "".join(dice.choices("abcdefgh ", k=max(1, length))),
            "max_tokens": load.output_tokens,
            "stream": True,
        }
        self.obeys = dice.random() < load.obey


class _Clients:
    def __init__(self, load: OfferedLoad) -> None:
        self._load = load
        self._began = time.monotonic()
        self.outcomes: list[TryOutcome] = []
        self.live_ms: list[float] = []

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    async def client(self, session: aiohttp.ClientSession, request: _Request) -> None:
        outcome = await self._try(session, request, again=False)
        if request.obeys and outcome.retry_after is not None:
            await asyncio.sleep(outcome.retry_after)
            await self._try(session, request, again=True)

    async def probe_live(self, session: aiohttp.ClientSession) -> None:
        began = self.now
        async with session.get("/live"):
            self.live_ms.append((self.now - began) * 1000)

    async def _try(
        self, session: aiohttp.ClientSession, request: _Request, *, again: bool
    ) -> TryOutcome:
        outcome = TryOutcome(self.now, again=again)
        self.outcomes.append(outcome)
        try:
            async with session.post("/v1/completions", json=request.body) as response:
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

    async def _refused(self, outcome: TryOutcome, response: aiohttp.ClientResponse) -> None:
        outcome.refused_in = self.now - outcome.at
        retry_after = response.headers.get("Retry-After")
        outcome.retry_after = float(retry_after) if retry_after is not None else None
        answer = await response.json()
        outcome.code = str(answer.get("error", {}).get("code", ""))
