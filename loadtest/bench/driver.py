"""Sends a load. Open loop: each request at its time, however slow the others' answers are. Closed
loop: as many at once as told, the next when one ended.

Open-loop latencies count from the intended time, so neither a slow server nor a late client hides a
wait (no coordinated omission). A closed loop has no intended time but the end of the request
before; what a client would have sent meanwhile is not in its figures, which is why it only
compares.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import aiohttp

from loadtest.bench.asks import Ask
from loadtest.bench.client import Client
from loadtest.bench.prompts import Maker
from loadtest.bench.samples import Kind, Sample
from loadtest.histogram import Histogram

DEAD_AFTER = 25
"""Requests in a row that found nobody: the endpoint is gone, and more of them tell nothing."""
OPEN_MAX = 20_000
AHEAD_MAX = 64
"""Requests whose bodies are made before they are due."""


class Plan(NamedTuple):
    """`concurrency` 0 = open loop. `seconds`: of a closed loop; 0 = as long as there are asks.
    `open_max`: requests in flight; one more is not sent, and counted as an error of ours."""

    url: str
    maker: Maker
    concurrency: int = 0
    seconds: float = 0.0
    timeout: float = 600.0
    api_key: str = ""
    open_max: int = OPEN_MAX


class Drive:
    """One load. `samples` grow while it runs; `tokens_by_second` counts chunks."""

    def __init__(self, plan: Plan, asks: Iterable[Ask]) -> None:
        self.samples: list[Sample] = []
        self.gaps = Histogram()
        self.tokens_by_second = array("q")
        self.open = 0
        self.stopped = ""
        self._plan = plan
        self._asks = iter(asks)
        self._began = time.monotonic()
        self._unheard = 0
        self._stop = asyncio.Event()

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._began

    def stop(self, why: str) -> None:
        """Sends nothing more and lets go of what is open."""
        self.stopped = self.stopped or why
        self._stop.set()

    async def run(self) -> None:
        """Ends when every request has, or when stopped."""
        plan = self._plan
        headers = {"authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
        timeout = aiohttp.ClientTimeout(total=plan.timeout, sock_connect=10.0)
        async with aiohttp.ClientSession(
            plan.url,
            timeout=timeout,
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=1 << 20,
        ) as session:
            client = Client(session, plan.maker.path, lambda: self.now, self.gaps.add, self._chunk)
            self._began = time.monotonic()
            load = self._closed(client) if plan.concurrency else self._open_loop(client)
            async with asyncio.TaskGroup() as group:
                work = group.create_task(load, name="load")
                stop = group.create_task(self._stop.wait(), name="stop")
                await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
                work.cancel()
                stop.cancel()

    async def _open_loop(self, client: Client) -> None:
        made: asyncio.Queue[tuple[Ask, bytes] | None] = asyncio.Queue(AHEAD_MAX)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._make(made), name="make")
            while (prepared := await made.get()) is not None:
                ask, body = prepared
                await asyncio.sleep(max(0.0, ask.at - self.now))
                sample = self._sample(ask, ask.at)
                if self.open >= self._plan.open_max:
                    sample.error = "client_full"
                    sample.detail = f"{self.open} requests are open, more are not held"
                    continue
                group.create_task(self._one(client, sample, body))

    async def _make(self, made: asyncio.Queue[tuple[Ask, bytes] | None]) -> None:
        """Bodies are made while nothing is due, so that many due at once are not late for it."""
        for ask in self._asks:
            await made.put((ask, self._plan.maker.body(ask)))
            await asyncio.sleep(0)
        await made.put(None)

    async def _closed(self, client: Client) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.concurrency):
                group.create_task(self._caller(client))

    async def _caller(self, client: Client) -> None:
        for ask in self._within(self._asks):
            body = self._plan.maker.body(ask)
            await self._one(client, self._sample(ask, self.now), body)

    def _within(self, asks: Iterator[Ask]) -> Iterator[Ask]:
        while not self._plan.seconds or self.now < self._plan.seconds:
            ask = next(asks, None)
            if ask is None:
                return
            yield ask

    def _sample(self, ask: Ask, due: float) -> Sample:
        sample = Sample(ask.kind, ask.prompt, ask.output, due)
        self.samples.append(sample)
        return sample

    async def _one(self, client: Client, sample: Sample, body: bytes) -> None:
        self.open += 1
        try:
            await client.ask(sample, body)
        except asyncio.CancelledError:
            sample.cancelled = True
            raise
        finally:
            self.open -= 1
        self._unheard = self._unheard + 1 if sample.error == Kind.CONNECT else 0
        if self._unheard >= DEAD_AFTER:
            self.stop(f"{self._plan.url} is gone: {sample.detail}")

    def _chunk(self, now: float) -> None:
        second = int(now)
        while len(self.tokens_by_second) <= second:
            self.tokens_by_second.append(0)
        self.tokens_by_second[second] += 1
