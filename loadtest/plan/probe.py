"""Asks a live fleet: one prompt at a time for the prefill curve, batches for the decode curve."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

from common.admin import ask
from common.errors import BatonError
from loadtest.bench import asks
from loadtest.bench.asks import Ask, Piece
from loadtest.bench.driver import Drive, Plan
from loadtest.bench.prompts import Maker
from loadtest.bench.samples import Sample
from loadtest.plan.fit import TENTHS, Probe, Step

SHORT_TOKENS = 32
STEP_TOKENS = 128
LEAST_PROMPT = 64
ENDED_TRIES, ENDED_SECONDS = 100, 0.05


class ProbeError(Exception):
    """The fleet could not be measured; the text says why."""


class Prober(NamedTuple):
    """`address`: the router's admin socket. `name`: makes this run's prompts unlike any other's, so
    that no cache knows them."""

    url: str
    address: str
    model: str
    name: str
    api_key: str = ""

    async def told(self, verb: str, **args: Any) -> Any:
        try:
            answer = await ask(self.address, verb, args)
        except BatonError as error:
            raise ProbeError(f"{error.message}; is --run-dir the fleet's?") from error
        if not answer.ok:
            raise ProbeError(f"the router answers {verb} with {answer.error.get('message')}")
        return answer.result

    async def prompts(self, lengths: list[int], repeats: int) -> list[Probe]:
        """One after the other, lengths in turn, so that a slow minute does not bend the curve."""
        found = []
        for turn in range(repeats):
            for length in lengths:
                seed = f"{self.name}.{turn}.{length}"
                (sample,) = await self._send(iter([Ask("probe", (Piece(seed, length),), 1)]), 1)
                found.append(await self._probed(sample))
        return found

    async def caches(self, length: int, workers: int) -> bool:
        """Whether the fleet caches prefixes. One prompt is asked again until it was cached, or
        until one of `workers` must have computed it twice."""
        again = Ask("probe", (Piece(f"{self.name}.again", length),), 1)
        for turn in range(workers + 1):
            (sample,) = await self._send(iter([again]), 1)
            if turn and cached_tokens(await self._ended(sample.request_id)):
                return True
        return False

    async def _probed(self, sample: Sample) -> Probe:
        told = (await self._ended(sample.request_id))["workers_ms"]
        return Probe(
            sample.prompt, told["prefill"], told["kv"], told["first_token"], sample.ttft_ms or 0.0
        )

    async def _ended(self, request_id: str) -> dict[str, Any]:
        """The timeline of a request whose client has its answer; the router hears of it beside
        that, a moment sooner or later."""
        for _ in range(ENDED_TRIES):
            told = await self.told("explain", id=request_id)
            attempt: dict[str, Any] = told["attempts"][-1]
            if attempt["state"] == "ended":
                return attempt
            await asyncio.sleep(ENDED_SECONDS)
        raise ProbeError(f"the router never heard of the end of {request_id}")

    async def steps(self, batches: list[int], workers: int) -> list[Step]:
        """So many streams at once on each of `workers`, spread by the router. Answers differ in
        length, so that all but the first ones begin one by one among the others' tokens: those are
        the probes."""
        found = []
        for batch in batches:
            streams = batch * workers
            load = [
                Ask("step", (Piece(f"{self.name}.b{batch}.{i}", SHORT_TOKENS),), _answer(i))
                for i in range(2 * streams if batch == 1 else max(3 * streams, streams + TENTHS))
            ]
            samples = await self._send(iter(load), streams)
            later = [await self._probed(each) for each in samples[streams:]]
            pace = median(each.tpot_ms or 0.0 for each in samples)
            found.append(Step(batch, pace, later if batch > 1 else ()))
        return found

    async def _send(self, load: Iterator[Ask], concurrency: int) -> list[Sample]:
        plan = Plan(self.url, Maker(self.model), concurrency=concurrency, api_key=self.api_key)
        drive = Drive(plan, load)
        await drive.run()
        wrong = next((each for each in drive.samples if not each.ok), None)
        if wrong is not None:
            raise ProbeError(f"a probe failed: {wrong.error} {wrong.detail}".strip())
        return drive.samples

    async def warm(self) -> None:
        """Connections, caches and compiled code."""
        await self._send(islice(asks.fixed(LEAST_PROMPT, 4, 0), 4), 2)


def cached_tokens(attempt: dict[str, Any]) -> int:
    """Of the worker that computed the prompt, by `explain`. What D was handed is not cached."""
    by = "prefill" if attempt["prefill"] else "decode"
    return attempt["cached_tokens"][by] or 0


def lengths_to(most: int) -> list[int]:
    """Doubling from 64, and the longest."""
    lengths = []
    length = LEAST_PROMPT
    while length < most:
        lengths.append(length)
        length *= 2
    return [*lengths, most]


def batches_to(most: int) -> list[int]:
    batches = []
    batch = 1
    while batch < most:
        batches.append(batch)
        batch *= 2
    return [*batches, most]


def _answer(number: int) -> int:
    """Tokens, between half and one and a half of STEP_TOKENS, STEP_TOKENS in the mean."""
    return STEP_TOKENS // 2 + number * 37 % STEP_TOKENS
