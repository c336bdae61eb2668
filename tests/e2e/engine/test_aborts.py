"""Aborts in each phase: both engines let everything go, and go on serving."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import psutil
import pytest

from common.engine.port import Engine, EngineRequest
from common.errors import BatonError, Code
from common.messages import Load, Role, Sampling
from common.worker.engine_watch import why_hung
from tests.e2e.engine.pair import GREEDY, LOAD_TIMEOUT_MS, Pair, Run, until

pytestmark = pytest.mark.timeout(300)

STEP_SECONDS_MAX = 5.0
"""An abort waits for the step in progress, which on a busy CPU can take seconds."""

HANG_MS = 1_000.0
LONG = Sampling(max_tokens=800, temperature=0.0, ignore_eos=True)


def prompt_of(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(10, 250) for _ in range(length)]


async def still_serves(pair: Pair, seed: int) -> None:
    prompt = prompt_of(300, seed)
    result, end = await pair.hand_over(prompt, salt=f"after{seed}")
    assert end.error == ""
    assert result.tokens == (await pair.alone(prompt)).tokens


@pytest.mark.parametrize("after_ms", [0, 5, 20, 60, 150, 300])
def test_aborting_both_at_any_moment_frees_both(run: Run, after_ms: int) -> None:
    async def work(pair: Pair) -> None:
        at_p, at_d = pair.requests(prompt_of(3000, after_ms), LONG, salt=f"any{after_ms}")
        await pair.prefill.add(at_p)
        await pair.decode.add(at_d)
        await asyncio.sleep(after_ms / 1000)
        await pair.decode.engine.abort(at_d.request_id, 0)
        await pair.prefill.engine.abort(at_p.request_id, 0)
        await pair.prefill.empty(STEP_SECONDS_MAX)
        await pair.decode.empty(STEP_SECONDS_MAX)
        await still_serves(pair, 100 + after_ms)

    run(work)


def test_aborting_p_that_holds_a_finished_prompt_frees_it(run: Run) -> None:
    async def work(pair: Pair) -> None:
        at_p, _ = pair.requests(prompt_of(600), salt="held")
        result = await pair.prefill.add(at_p)
        await asyncio.wait_for(result.done.wait(), 20)
        await asyncio.sleep(0.1)
        assert pair.prefill.engine.load().kv_used > 0, "the lease must hold the blocks"
        await pair.prefill.engine.abort(at_p.request_id, 0)
        await pair.prefill.empty(STEP_SECONDS_MAX)
        await still_serves(pair, 1)

    run(work)


def test_aborting_d_while_it_waits_for_kv_frees_it(run: Run) -> None:
    async def work(pair: Pair) -> None:
        _, at_d = pair.requests(prompt_of(600), salt="waiting")
        await pair.decode.add(at_d)
        await until(lambda: pair.decode.engine.load().kv_used > 0)
        await pair.decode.engine.abort(at_d.request_id, 0)
        await pair.decode.empty(STEP_SECONDS_MAX)
        await still_serves(pair, 2)

    run(work)


def test_a_lease_that_nobody_takes_ends_by_itself(run: Run) -> None:
    async def work(pair: Pair) -> None:
        name = pair.request_id()
        ticket = pair.ticket(name, lease_ms=400)
        request = EngineRequest(name, 0, Role.PREFILL, prompt_of(600), GREEDY, ticket, name)
        await pair.prefill.add(request)
        end = await pair.prefill.kv_end(name, "send", 5)
        assert end.error == Code.KV_TRANSFER_FAILED
        await pair.prefill.empty(STEP_SECONDS_MAX)

    run(work)


def test_what_the_engine_refuses_is_said_and_leaves_no_trace(run: Run) -> None:
    async def work(pair: Pair) -> None:
        cases = [
            (prompt_of(4096), GREEDY, Code.CONTEXT_LENGTH_EXCEEDED),
            ([], GREEDY, Code.INVALID_REQUEST),
            ([5, 100_000], GREEDY, Code.INVALID_REQUEST),
            ([5, 6], Sampling(max_tokens=4, temperature=-1.0), Code.INVALID_REQUEST),
            ([5, 6], Sampling(max_tokens=0), Code.INVALID_REQUEST),
        ]
        for prompt, sampling, code in cases:
            name = pair.request_id()
            with pytest.raises(BatonError) as refused:
                await pair.decode.engine.add(EngineRequest(name, 0, Role.DECODE, prompt, sampling))
            assert refused.value.code == code
        await pair.decode.engine.abort("never-seen", 3)
        await still_serves(pair, 3)

    run(work)


async def idle(engine: Engine) -> None:
    await until(lambda: engine.load().silent_ms == 0.0 and engine.load().step_age_ms == 0.0, 20.0)


@pytest.mark.parametrize("busy", [True, False])
def test_an_engine_that_is_stopped_is_found_without_its_requests_too(run: Run, busy: bool) -> None:
    """SIGSTOP of both engines' processes. What ran is taken from them, as the router does; before
    there was a probe, such an engine looked idle and well."""

    async def work(pair: Pair) -> None:
        decode = pair.decode.engine
        await idle(decode)
        _, at_d = pair.requests(prompt_of(300), LONG, salt="stopped")
        if busy:
            result = await pair.decode.add(dataclasses.replace(at_d, ticket=None))
            await until(lambda: len(result.tokens) > 2, 20.0)
        cores = psutil.Process().children()
        for core in cores:
            core.suspend()
        try:
            if busy:
                await until(lambda: decode.load().step_age_ms > HANG_MS / 2, 10.0)
                await decode.abort(at_d.request_id, 0)
                assert decode.load().step_age_ms > HANG_MS / 2
            await until(lambda: decode.load().step_age_ms > HANG_MS, 10.0)
            await until(lambda: "did not answer" in hung(decode.load(), ran=busy), 10.0)
        finally:
            for core in cores:
                core.resume()
        await until(lambda: decode.load().step_age_ms == 0.0, 20.0)
        assert hung(decode.load(), ran=busy) == ""
        await pair.decode.empty(STEP_SECONDS_MAX)

    run(work)


def hung(load: Load, *, ran: bool) -> str:
    return why_hung(load, HANG_MS, LOAD_TIMEOUT_MS, ran=ran)
