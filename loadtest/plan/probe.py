"""Probes a live fleet: single prompts for the prefill curve, batches for the decode curve."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import msgspec

from common.errors import BatonError
from common.net.admin_client import ask
from common.telemetry.timeline import AttemptRecord
from loadtest.bench import request_specs
from loadtest.bench.driver import LoadPlan, LoadRun
from loadtest.bench.prompts import Maker
from loadtest.bench.request_specs import Piece, RequestSpec
from loadtest.bench.sample import Sample
from loadtest.plan.fit import TENTHS, Step, TimedProbe

SHORT_TOKENS = 32
STEP_TOKENS = 128
LEAST_PROMPT = 64
ENDED_TRIES, ENDED_SECONDS = 100, 0.05


class ProbeError(Exception):
    """The fleet could not be measured; the text names the cause."""


class Prober(NamedTuple):
    """Sends probes to one fleet."""

    url: str
    #: The router's admin socket.
    address: str
    model: str
    #: Part of every prompt of this run, so that no cache knows them.
    name: str
    api_key: str = ""

    async def query(self, verb: str, **args: Any) -> Any:
        try:
            answer = await ask(self.address, verb, args)
        except BatonError as error:
            raise ProbeError(f"{error.message}; is --run-dir the fleet's?") from error
        if not answer.ok:
            raise ProbeError(f"the router answers {verb} with {answer.error.get('message')}")
        return answer.result

    async def prompts(self, lengths: list[int], repeats: int) -> list[TimedProbe]:
        """One after the other, lengths in turn, so that a slow minute does not bend the curve."""
        found = []
        for turn in range(repeats):
            for length in lengths:
                seed = f"{self.name}.{turn}.{length}"
                (sample,) = await self._send(
                    iter([RequestSpec("probe", (Piece(seed, length),), 1)]), 1
                )
                found.append(await self._probed(sample))
        return found

    async def caches(self, length: int, workers: int) -> bool:
        """Whether the fleet caches prefixes. One prompt is asked again until it was cached, or
        until one of `workers` must have computed it twice."""
        again = RequestSpec("probe", (Piece(f"{self.name}.again", length),), 1)
        for turn in range(workers + 1):
            (sample,) = await self._send(iter([again]), 1)
            if turn and cached_tokens(await self._ended(sample.request_id)):
                return True
        return False

    async def _probed(self, sample: Sample) -> TimedProbe:
        times = (await self._ended(sample.request_id)).workers_ms
        return TimedProbe(
            sample.prompt, times.prefill, times.kv, times.first_token or 0.0, sample.ttft_ms or 0.0
        )

    async def _ended(self, request_id: str) -> AttemptRecord:
        """The last attempt of a request whose client has its answer. The router receives the end by
        another way, so it may take a moment."""
        for _ in range(ENDED_TRIES):
            timeline = await self.query("explain", id=request_id)
            attempt = msgspec.convert(timeline["attempts"][-1], AttemptRecord)
            if attempt.state == "ended":
                return attempt
            await asyncio.sleep(ENDED_SECONDS)
        raise ProbeError(f"the router never received the end of {request_id}")

    async def steps(self, batches: list[int], workers: int) -> list[Step]:
        """So many streams at once on each of `workers`, spread by the router. Answers differ in
        length, so that all but the first ones begin one by one among the others' tokens: those are
        the probes."""
        found = []
        for batch in batches:
            streams = batch * workers
            load = [
                RequestSpec("step", (Piece(f"{self.name}.b{batch}.{i}", SHORT_TOKENS),), _answer(i))
                for i in range(2 * streams if batch == 1 else max(3 * streams, streams + TENTHS))
            ]
            samples = await self._send(iter(load), streams)
            later = [await self._probed(sample) for sample in samples[streams:]]
            pace = median(sample.tpot_ms or 0.0 for sample in samples)
            found.append(Step(batch, pace, later if batch > 1 else ()))
        return found

    async def _send(self, load: Iterator[RequestSpec], concurrency: int) -> list[Sample]:
        plan = LoadPlan(self.url, Maker(self.model), concurrency=concurrency, api_key=self.api_key)
        load_run = LoadRun(plan, load)
        await load_run.run()
        wrong = next((sample for sample in load_run.samples if not sample.ok), None)
        if wrong is not None:
            raise ProbeError(f"a probe failed: {wrong.error} {wrong.detail}".strip())
        return load_run.samples

    async def warm(self) -> None:
        """Connections, caches and compiled code."""
        await self._send(islice(request_specs.fixed(LEAST_PROMPT, 4, 0), 4), 2)


def cached_tokens(attempt: AttemptRecord) -> int:
    """Of the worker that computed the prompt, by `explain`. What D was handed is not cached."""
    cached = attempt.cached_tokens
    return (cached.prefill if attempt.prefill else cached.decode) or 0


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
