"""A running stream goes on at another engine from its KV, on real vLLM.

The prefill engine of the pair plays the decode worker that the stream leaves.
"""

from __future__ import annotations

import asyncio

import pytest

from common.engine.port import EngineRequest, engine_key
from common.messages import Role, Sampling
from services.gateway.requests.recovery import remaining_sampling
from tests.e2e.engine.pair import GREEDY, Pair, Result, Run, until
from tests.e2e.engine.test_resume import CASES
from tests.e2e.prompts import prompts

pytestmark = pytest.mark.timeout(300)

SIZE = 40
CUT = 9
LONG = max(prompts(12), key=len)
LENGTHS = (1, 118, 119, 120, 127, 128, 129, 700, 2_000)
"""Around the edges of a block of 128 tokens, before and after the cut."""


def test_the_rest_comes_from_the_kv_that_moved(run: Run) -> None:
    async def work(pair: Pair) -> None:
        for length in LENGTHS:
            prompt = LONG[:length]
            sampling = Sampling(max_tokens=SIZE, temperature=0.0, ignore_eos=True)
            whole = await alone(pair, prompt, sampling)
            made, after = await moved(pair, prompt, sampling)
            assert made + after.tokens == whole.tokens, length
            assert after.cached == length + len(made) - 1, "D computes the last token alone"
        await pair.prefill.empty()

    run(work)


@pytest.mark.parametrize("name", CASES)
def test_sampling_state_goes_along(run: Run, name: str) -> None:
    sampling, prompt = CASES[name], LONG[:150]

    async def work(pair: Pair) -> None:
        whole = await alone(pair, prompt, sampling)
        made, after = await moved(pair, prompt, sampling)
        assert made + after.tokens == whole.tokens

    run(work)


def test_many_streams_leave_at_once(run: Run) -> None:
    async def work(pair: Pair) -> None:
        texts = [LONG[at : 60 + 40 * at] for at in range(8)]
        whole = [await alone(pair, text, GREEDY) for text in texts]
        ends = await asyncio.gather(*(moved(pair, text, GREEDY, cut=4) for text in texts))
        assert [made + after.tokens for made, after in ends] == [w.tokens for w in whole]
        assert all(after.cached for _, after in ends)
        await pair.prefill.empty()

    run(work)


def test_kv_that_is_gone_is_told_at_once_and_computed(run: Run) -> None:
    """Released by the daemon, or never there."""

    async def work(pair: Pair) -> None:
        prompt = LONG[:300]
        whole = await alone(pair, prompt, GREEDY)
        made, after = await moved(pair, prompt, GREEDY, keep=False)
        assert made + after.tokens == whole.tokens
        name = pair.request_id()
        pair.prefill.engine.leave(name, 0)
        after = await take(pair, name, prompt, GREEDY, [])
        assert after.tokens == whole.tokens
        assert engine_key(name, 0) not in pair.prefill.left

    run(work)


def test_kv_that_nobody_takes_is_freed(run: Run) -> None:
    async def work(pair: Pair) -> None:
        name = pair.request_id()
        result = await begin(pair, name, LONG[:200], GREEDY)
        await until(lambda: len(result.tokens) > 2)
        await left(pair, name)
        ended = await pair.prefill.kv_end(name, "send")
        assert ended.error
        await pair.prefill.empty()

    run(work)


async def alone(pair: Pair, prompt: list[int], sampling: Sampling) -> Result:
    result = await pair.alone(prompt, sampling)
    assert not result.error
    return result


async def begin(
    pair: Pair, name: str, prompt: list[int], sampling: Sampling, adapter: str = ""
) -> Result:
    request = EngineRequest(name, 0, Role.DECODE, prompt, sampling, None, name, adapter=adapter)
    return await pair.prefill.add(request)


async def moved(
    pair: Pair,
    prompt: list[int],
    sampling: Sampling,
    *,
    cut: int = CUT,
    keep: bool = True,
    adapter: str = "",
) -> tuple[list[int], Result]:
    """What the first engine had made when it gave the stream up, and the rest."""
    name = pair.request_id()
    result = await begin(pair, name, prompt, sampling, adapter)
    await until(lambda: len(result.tokens) >= cut)
    if keep:
        await left(pair, name)
    else:
        await pair.prefill.engine.abort(name, 0)
    made = list(result.tokens)
    after = await take(pair, name, prompt, sampling, made, adapter)
    if keep:
        ended = await pair.prefill.kv_end(name, "send")
        assert not ended.error, ended.message
    return made, after


async def left(pair: Pair, name: str) -> None:
    """Returns when all tokens are there that the first engine makes of it."""
    pair.prefill.engine.leave(name, 0)
    await until(lambda: engine_key(name, 0) in pair.prefill.left)


async def take(
    pair: Pair,
    name: str,
    prompt: list[int],
    sampling: Sampling,
    made: list[int],
    adapter: str = "",
) -> Result:
    """The next attempt, at the second engine."""
    ticket = pair.ticket(name, attempt=1)
    pair.prefill.engine.hand_over(ticket, 0)
    rest = remaining_sampling(sampling, len(made))
    ids, emitted = [*prompt, *made], len(made)
    request = EngineRequest(
        name, 1, Role.DECODE, ids, rest, ticket, name, emitted=emitted, adapter=adapter
    )
    result = await pair.decode.add(request)
    await asyncio.wait_for(result.done.wait(), 60)
    assert not result.error
    return result
