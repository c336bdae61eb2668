"""A running stream goes on at another engine from its KV, on real vLLM.

The prefill engine of the pair plays the decode worker that the stream leaves.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from common.engine.port import EngineRequest, engine_key
from common.messages import CopyAhead, KvCounts, KvHolder, Role, Sampling
from services.gateway.requests.recovery import remaining_sampling
from tests.e2e.engine.pair import GREEDY, Pair, Result, Run, Worker, make_config, play, until
from tests.e2e.engine.test_resume import CASES
from tests.e2e.prompts import BLOCK, prompts

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


def test_the_next_engine_has_what_was_copied_before_the_stream_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes a step for that without a request. Of a mere checkpoint it gets nothing."""
    monkeypatch.setattr("common.engine.probe.PROBE_SECONDS", 1_000.0)
    prompt, long = LONG[:1_000], Sampling(max_tokens=900, temperature=0.0, ignore_eos=True)
    blocks = len(prompt) // BLOCK

    async def work(pair: Pair) -> None:
        whole = await alone(pair, prompt, long)
        name = pair.request_id()
        result = await begin(pair, name, prompt, long)
        await copied(pair, name, goes_on=False)
        await until(lambda: counts(pair.decode).store_copied >= blocks, 60)
        assert counts(pair.decode).store_ahead == 0
        await copied(pair, name, goes_on=True)
        await until(lambda: counts(pair.decode).store_ahead >= blocks, 60)
        await left(pair, name)
        made = list(result.tokens)
        after = await take(pair, name, prompt, long, made)
        assert made + after.tokens == whole.tokens
        assert after.cached == len(prompt) + len(made) - 1
        told = counts(pair.decode)
        assert told.store_read - told.store_ahead < blocks, "it read again what its engine had"

    play(make_config(tmp_path, store={"ram_mib": 64}), work)


def counts(worker: Worker) -> KvCounts:
    status = worker.engine.kv_status()
    return status.counts if status is not None else KvCounts()


async def copied(pair: Pair, name: str, *, goes_on: bool) -> None:
    """The full blocks of this stream go to the second engine's store. Returns when they have."""
    info = pair.decode.engine.info
    holder = KvHolder(
        name="d0",
        incarnation="inc-d0",
        fingerprint=info.fingerprint,
        kv_address=info.kv_address,
        goes_on=goes_on,
    )
    pair.prefill.kv.pop((name, 0, "copy"), None)
    order = CopyAhead(request_id=name, attempt=0, holder=holder, lag_blocks=0)
    pair.prefill.engine.copy_ahead(order)
    ended = await pair.prefill.kv_end(name, "copy", 60)
    assert not ended.message, ended.message


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
