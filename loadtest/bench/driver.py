"""Sends a load, open loop (each request at its time) or closed loop (a fixed number in flight).

Open-loop latencies count from the intended time, so neither a slow server nor a late client hides a
wait (no coordinated omission). A closed loop has no intended time but the end of the request
before; what a client would have sent meanwhile is not in its figures, which is why it only
compares.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import aiohttp

from loadtest.bench.client import Client
from loadtest.bench.prompts import Maker
from loadtest.bench.request_specs import RequestSpec
from loadtest.bench.sample import FailureKind, Sample
from loadtest.histogram import Histogram

DEAD_AFTER = 25
"""Requests in a row without a connection after which the endpoint counts as gone."""
OPEN_MAX = 20_000
AHEAD_MAX = 64
"""Requests whose bodies are made before they are due."""


class LoadPlan(NamedTuple):
    """How a load is sent."""

    url: str
    #: Makes the bodies.
    maker: Maker
    #: Requests in flight of a closed loop; 0 for an open loop.
    concurrency: int = 0
    #: Duration of a closed loop; 0 until no request is left.
    seconds: float = 0.0
    #: Seconds that one request may take.
    timeout: float = 600.0
    api_key: str = ""
    #: Limit of requests in flight. A request beyond it is not sent and counts as an error of the
    #: client.
    open_max: int = OPEN_MAX
    #: Share of the clients that ask again, once, after the `Retry-After` of a refusal.
    obey: float = 0.0


class LoadRun:
    """One load while it runs and after it."""

    def __init__(self, plan: LoadPlan, specs: Iterable[RequestSpec]) -> None:
        #: One for each request, in the order of sending; grows while the load runs.
        self.samples: list[Sample] = []
        #: Milliseconds between two chunks of an answer.
        self.gaps = Histogram()
        #: Chunks received in each second.
        self.tokens_by_second = array("q")
        #: Requests in flight.
        self.open = 0
        #: Why the load was stopped early; empty if it was not.
        self.stopped = ""
        self._plan = plan
        self._specs = iter(specs)
        self._began = time.monotonic()
        self._unheard = 0
        self._dice = random.Random(0)
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
        made: asyncio.Queue[tuple[RequestSpec, bytes] | None] = asyncio.Queue(AHEAD_MAX)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._make(made), name="make")
            while (prepared := await made.get()) is not None:
                spec, body = prepared
                await asyncio.sleep(max(0.0, spec.at - self.now))
                sample = self._sample(spec, spec.at)
                if self.open >= self._plan.open_max:
                    sample.error = "client_full"
                    sample.detail = f"{self.open} requests are open, more are not held"
                    continue
                group.create_task(self._one(client, sample, body))

    async def _make(self, made: asyncio.Queue[tuple[RequestSpec, bytes] | None]) -> None:
        """Bodies are made while nothing is due, so that many due at once are not late for it."""
        for spec in self._specs:
            await made.put((spec, self._plan.maker.body(spec)))
            await asyncio.sleep(0)
        await made.put(None)

    async def _closed(self, client: Client) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.concurrency):
                group.create_task(self._caller(client))

    async def _caller(self, client: Client) -> None:
        for spec in self._within(self._specs):
            body = self._plan.maker.body(spec)
            await self._one(client, self._sample(spec, self.now), body)

    def _within(self, specs: Iterator[RequestSpec]) -> Iterator[RequestSpec]:
        while not self._plan.seconds or self.now < self._plan.seconds:
            spec = next(specs, None)
            if spec is None:
                return
            yield spec

    def _sample(self, spec: RequestSpec, due: float) -> Sample:
        sample = Sample(spec.kind, spec.prompt, spec.output, due)
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
        self._unheard = self._unheard + 1 if sample.error == FailureKind.CONNECT else 0
        if self._unheard >= DEAD_AFTER:
            self.stop(f"{self._plan.url} is gone: {sample.detail}")
        if sample.retry_after is not None and not sample.again and self._obeys():
            await asyncio.sleep(sample.retry_after)
            again = Sample(sample.kind, sample.prompt, sample.output, self.now, again=True)
            self.samples.append(again)
            await self._one(client, again, body)

    def _obeys(self) -> bool:
        return self._dice.random() < self._plan.obey

    def _chunk(self, now: float) -> None:
        second = int(now)
        while len(self.tokens_by_second) <= second:
            self.tokens_by_second.append(0)
        self.tokens_by_second[second] += 1
