"""A request that goes on at another engine says exactly what it would have said, on real vLLM.

Each text is made once whole, then again from a cut on as a later attempt: the prompt then ends with
what was emitted before the cut. The engine of a later attempt knows nothing of the earlier one
(each request has a cache salt of its own).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import msgspec
import pytest

from common.engine.port import EngineRequest
from common.messages import Role, Sampling, Structured, StructureKind
from services.gateway.requests.recovery import remaining_sampling
from tests.e2e.engine.pair import Pair, Result, Run
from tests.e2e.prompts import prompts
from tests.e2e.reference import plain_answers

pytestmark = pytest.mark.timeout(300)

SIZE = 40
CUTS = (1, 2, 17, 39)
WARM: dict[str, Any] = {"max_tokens": SIZE, "temperature": 1.5, "ignore_eos": True}
COLD: dict[str, Any] = {"max_tokens": SIZE, "temperature": 0.0, "ignore_eos": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "legs": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "legs"],
    "additionalProperties": False,
}
NO_SPACES = dict.fromkeys(b" \t\r\n", -100.0)
"""Else it says nothing but them."""


def structured(kind: StructureKind, source: str) -> Structured:
    return Structured(kind=kind, source=source, disable_any_whitespace=kind is StructureKind.JSON)


CASES = {
    "seed": Sampling(**WARM, seed=7),
    "seed, top_p, top_k": Sampling(**WARM, seed=8, top_p=0.9, top_k=40),
    "seed, min_p": Sampling(**WARM, seed=9, min_p=0.02),
    "presence": Sampling(**COLD, presence_penalty=1.5),
    "frequency": Sampling(**COLD, frequency_penalty=0.7),
    "negative penalties": Sampling(**COLD, presence_penalty=-0.3, frequency_penalty=-0.02),
    "all penalties": Sampling(
        **COLD, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.2
    ),
    "repetition": Sampling(**COLD, repetition_penalty=1.4),
    "seed and penalties": Sampling(**WARM, seed=5, presence_penalty=0.8, frequency_penalty=0.2),
    "seed and logit bias": Sampling(**WARM, seed=5, logit_bias={101: 9.0, 102: 9.0}),
    "schema": Sampling(
        max_tokens=SIZE,
        temperature=0.0,
        logit_bias=NO_SPACES,
        structured=structured(StructureKind.JSON, json.dumps(SCHEMA)),
    ),
    "schema, seed": Sampling(
        max_tokens=SIZE,
        temperature=1.5,
        seed=3,
        logit_bias=NO_SPACES,
        structured=structured(StructureKind.JSON, json.dumps(SCHEMA)),
    ),
    "regex": Sampling(
        max_tokens=SIZE,
        temperature=0.0,
        structured=structured(StructureKind.REGEX, "([a-z]{3} ){5}[0-9]{20}"),
    ),
    "logprobs": Sampling(**WARM, seed=4, logprobs=3, frequency_penalty=0.5),
}


PLAIN = {name: each for name, each in CASES.items() if not each.structured and not each.logit_bias}
"""Those that JSON can ask for."""


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """What one vLLM engine without any of our code makes of the `PLAIN` cases."""
    asked = [msgspec.to_builtins(sampling) for sampling in PLAIN.values()]
    return plain_answers(prompts(1) * len(PLAIN), SIZE, asked)


def test_a_first_attempt_says_what_plain_vllm_says(run: Run, plain: list[list[int]]) -> None:
    (prompt,) = prompts(1)

    async def work(pair: Pair) -> None:
        for (name, sampling), expected in zip(PLAIN.items(), plain, strict=True):
            assert (await run_one(pair, prompt, sampling)).tokens == expected, name

    run(work)


async def run_one(pair: Pair, prompt: list[int], sampling: Sampling, emitted: int = 0) -> Result:
    name = pair.request_id()
    request = EngineRequest(name, 0, Role.DECODE, prompt, sampling, None, name, emitted=emitted)
    result = await pair.decode.add(request)
    await asyncio.wait_for(result.done.wait(), 60)
    assert not result.error
    return result


async def rest(pair: Pair, prompt: list[int], sampling: Sampling, made: list[int]) -> Result:
    """What a later attempt says after `made`."""
    return await run_one(pair, [*prompt, *made], remaining_sampling(sampling, len(made)), len(made))


@pytest.mark.parametrize("name", CASES)
def test_the_rest_is_what_it_would_have_been(run: Run, name: str) -> None:
    sampling = CASES[name]
    (prompt,) = prompts(1)

    async def work(pair: Pair) -> None:
        whole = await run_one(pair, prompt, sampling)
        assert len(set(whole.tokens)) > 3
        await check_cuts(pair, prompt, sampling, whole)

    run(work)


async def check_cuts(pair: Pair, prompt: list[int], sampling: Sampling, whole: Result) -> None:
    for cut in CUTS:
        if cut < len(whole.tokens):
            after = await rest(pair, prompt, sampling, whole.tokens[:cut])
            assert (after.tokens, after.finish) == (whole.tokens[cut:], whole.finish), cut
            assert msgspec.to_builtins(after.logprobs) == close(whole.logprobs[cut:])


@pytest.mark.parametrize("name", ["seed", "frequency", "regex"])
def test_it_would_differ_if_emitted_tokens_were_prompt(run: Run, name: str) -> None:
    """So the equality above is one of restored state."""
    sampling = CASES[name]
    (prompt,) = prompts(1)

    async def work(pair: Pair) -> None:
        whole = (await run_one(pair, prompt, sampling)).tokens
        after = await run_one(pair, [*prompt, *whole[:17]], remaining_sampling(sampling, 17))
        assert after.tokens != whole[17:]

    run(work)


def test_bad_words_are_matched_across_the_cut(run: Run) -> None:
    (prompt,) = prompts(1)

    async def work(pair: Pair) -> None:
        free = (await run_one(pair, prompt, Sampling(**COLD))).tokens
        at = next(i for i in range(3, SIZE) if chr(free[i - 1]).isalpha() and free[i] != 32)
        word = bytes(free[at - 1 : at + 1]).decode()
        sampling = Sampling(**COLD, bad_words=(word,))
        whole = await run_one(pair, prompt, sampling)
        assert whole.tokens[:at] == free[:at]
        assert whole.tokens[at] != free[at]
        after = await rest(pair, prompt, sampling, whole.tokens[:at])
        assert after.tokens == whole.tokens[at:]
        await check_cuts(pair, prompt, sampling, whole)

    run(work)


def test_min_tokens_count_what_was_emitted(run: Run) -> None:
    """The end of the text is always the likeliest, and only forbidden for so long."""
    (prompt,) = prompts(1)
    stop = Sampling(max_tokens=SIZE, temperature=0.0, min_tokens=20, logit_bias={257: 100.0})
    sampling = msgspec.structs.replace(stop, stop_token_ids=(257,), ignore_eos=True)

    async def work(pair: Pair) -> None:
        whole = await run_one(pair, prompt, sampling)
        assert len(whole.tokens) == 21
        assert whole.finish == "stop"
        await check_cuts(pair, prompt, sampling, whole)

    run(work)


def test_a_seed_is_entered_right_after_kv_was_handed_over_and_beside_others(run: Run) -> None:
    """The later attempt's prompt comes from P, and rows move in a batch where others end."""
    (prompt,) = prompts(1)
    sampling = CASES["seed and penalties"]

    async def work(pair: Pair) -> None:
        whole = await run_one(pair, prompt, sampling)
        name = pair.request_id()
        at_p, at_d = pair.requests(
            [*prompt, *whole.tokens[:17]], remaining_sampling(sampling, 17), name
        )
        at_d = dataclasses.replace(at_d, emitted=17)
        short = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)
        others = [
            await pair.decode.add(EngineRequest(f"{name}-{i}", 0, Role.DECODE, [5, 6, i], asked))
            for i, asked in enumerate([short, sampling, short, sampling])
        ]
        await pair.prefill.add(at_p)
        after = await pair.decode.add(at_d)
        for result in (after, *others):
            await asyncio.wait_for(result.done.wait(), 60)
        assert after.tokens == whole.tokens[17:]
        assert after.cached > 0

    run(work)


def test_a_seeded_prompt_in_chunks_is_served_and_says_the_same(run: Run) -> None:
    """vLLM's own way dies of it on CPU (see `ResumeSampler`)."""
    prompt = [3 + (i * 7) % 250 for i in range(3000)]
    sampling = Sampling(max_tokens=8, temperature=1.5, seed=7, ignore_eos=True)

    async def work(pair: Pair) -> None:
        alone = await run_one(pair, prompt, sampling)
        handed, _ = await pair.hand_over(prompt, sampling, pair.request_id())
        assert handed.tokens == alone.tokens

    run(work)


def close(rows: list[Any]) -> Any:
    """Equal ids and ranks, and logprobs but for the noise of another way to the same KV."""
    made = msgspec.to_builtins(rows)
    return [[rank, ids, pytest.approx(values, abs=1e-3)] for rank, ids, values in made]
