"""An engine that drafts by n-grams says what one plain vLLM without speculation says, whatever is
asked, after a handoff from a P without, and after a move in the middle of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.config import Config, from_mapping
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.errors import BatonError
from common.messages import Role, Sampling
from tests.e2e.engine.pair import Pair, Run, make_config, on_one_loop, open_pair
from tests.e2e.engine.test_moves import alone, moved
from tests.e2e.engine.test_resume import CASES, COLD, PLAIN, WARM, check_cuts, run_one
from tests.e2e.prompts import prompts
from tests.e2e.reference import plain_answers

pytestmark = pytest.mark.timeout(300)

SIZE = 48
GREEDY = Sampling(max_tokens=SIZE, temperature=0.0, ignore_eos=True)
FEW = tuple(range(101, 104))
"""So few allowed tokens make a text that repeats itself, and most drafts are accepted."""
COPIES = Sampling(max_tokens=120, temperature=0.0, ignore_eos=True, allowed_token_ids=FEW)
SPECULATION: dict[str, Any] = {"method": "ngram", "tokens": 4, "ngram_min": 1}
BATCH_MAX = 8
BESIDE: dict[str, Any] = {
    "few": {"allowed_token_ids": FEW},
    "least": {"min_tokens": 20, "stop_token_ids": (32,)},
    "bias": {"logit_bias": {101: 9.0, 102: 9.0}},
    "warm bias": {"temperature": 1.5, "seed": 3, "logit_bias": {101: 9.0, 102: 9.0}},
    "min_p": {"temperature": 1.5, "seed": 4, "min_p": 0.02},
}
"""What drafts, and requests without drafts, must do beside each other."""


def speculating(folder: Path, *, both: bool = False) -> Config:
    """The pair's configuration with a D that drafts; with `both`, P is such a D, too, and neither
    drafts in larger steps."""
    raw = msgspec.to_builtins(make_config(folder))
    raw["decode"]["d0"]["speculation"] = SPECULATION
    if both:
        raw["decode"]["d0"]["speculation"] = SPECULATION | {"batch_max": BATCH_MAX}
        raw["decode"]["p0"] = raw["decode"]["d0"]
        del raw["prefill"]["p0"]
    return from_mapping({key: raw[key] for key in ("fleet", "model", "prefill", "decode")})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from on_one_loop(open_pair(speculating(tmp_path_factory.mktemp("run"))))


@pytest.fixture(scope="module")
def run_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    config = speculating(tmp_path_factory.mktemp("run"), both=True)
    workers = [open_engine(config, Role.DECODE, name, f"inc-{name}") for name in ("p0", "d0")]
    yield from on_one_loop(Pair(*workers))


@pytest.fixture(scope="module")
def plain() -> dict[str, list[list[int]]]:
    """What one vLLM engine without any of our code and without speculation says."""
    texts = prompts(40)
    few = [{"allowed_token_ids": list(FEW), "max_tokens": COPIES.max_tokens}] * 8
    cases = [msgspec.to_builtins(sampling) for sampling in PLAIN.values()]
    asks = [{}] * 40 + few + cases
    made = plain_answers(texts + texts[:8] + texts[:1] * len(cases), SIZE, asks)
    return {"greedy": made[:40], "copies": made[40:48], "cases": made[48:]}


def test_greedy_text_is_that_of_a_plain_engine(run: Run, plain: dict[str, list[list[int]]]) -> None:
    async def work(pair: Pair) -> None:
        infos = pair.prefill.engine.info, pair.decode.engine.info
        assert infos[0].fingerprint == infos[1].fingerprint, "n-grams have no KV"
        assert [info.speculation for info in infos] == ["", "ngram"]
        assert [info.step_tokens for info in infos] == [1, SPECULATION["tokens"] + 1]
        texts, steps = prompts(40), pair.decode.batches
        for prompt, expected in zip(texts[:12], plain["greedy"][:12], strict=True):
            result, end = await pair.hand_over(prompt, GREEDY, salt=pair.request_id())
            assert result.tokens == expected, len(prompt)
            assert not end.error, end.message
            assert result.cached == len(prompt) - 1
        assert pair.decode.batches - steps < 12 * SIZE, "no draft was accepted"
        answers = await asyncio.gather(*(pair.hand_over(prompt, GREEDY) for prompt in texts))
        for prompt, (result, end), expected in zip(texts, answers, plain["greedy"], strict=True):
            assert result.tokens == expected, len(prompt)
            assert not end.error, end.message
        await pair.prefill.empty()
        await pair.decode.empty()

    run(work)


def test_most_of_a_text_that_repeats_itself_comes_in_bursts(
    run: Run, plain: dict[str, list[list[int]]]
) -> None:
    async def work(pair: Pair) -> None:
        accepted, steps = pair.decode.accepted, pair.decode.batches
        for prompt, expected in zip(prompts(8), plain["copies"], strict=True):
            result, _ = await pair.hand_over(prompt, COPIES, salt=pair.request_id())
            assert result.tokens == expected
        made = 8 * COPIES.max_tokens
        accepted, steps = pair.decode.accepted - accepted, pair.decode.batches - steps
        print(f"{made} tokens in {steps} steps, {accepted} of them drafted")
        assert accepted > made // 4
        assert steps < made * 3 // 4

    run(work)


def test_what_needs_state_is_asked_beside_drafts_and_says_the_same(
    run: Run, plain: dict[str, list[list[int]]]
) -> None:
    """All at once: rows with drafts lie beside rows without."""
    (prompt,) = prompts(1)
    beside = [Sampling(**(COLD | {"max_tokens": SIZE} | one)) for one in BESIDE.values()]
    beside += [sampling for name, sampling in CASES.items() if name not in PLAIN]

    async def work(pair: Pair) -> None:
        for (name, sampling), expected in zip(PLAIN.items(), plain["cases"], strict=True):
            assert (await run_one(pair, prompt, sampling)).tokens == expected, name
        at_p = [await without_drafts(pair, prompt, sampling) for sampling in beside]
        everything = [*PLAIN.values(), *beside, *[COPIES] * 4]
        results = await asyncio.gather(*(run_one(pair, prompt, one) for one in everything))
        wanted = plain["cases"] + at_p + plain["copies"][:1] * 4
        for number, (result, tokens) in enumerate(zip(results, wanted, strict=True)):
            assert result.tokens == tokens, number

    run(work)


async def without_drafts(pair: Pair, prompt: list[int], sampling: Sampling) -> list[int]:
    """What P says, which does not speculate."""
    name = pair.request_id()
    asked = EngineRequest(name, 0, Role.DECODE, prompt, sampling, None, name)
    result = await pair.prefill.add(asked)
    await asyncio.wait_for(result.done.wait(), 60)
    return result.tokens


@pytest.mark.parametrize("name", CASES)
def test_a_later_attempt_goes_on_exactly(run: Run, name: str) -> None:
    (prompt,) = prompts(1)

    async def work(pair: Pair) -> None:
        whole = await run_one(pair, prompt, CASES[name])
        await check_cuts(pair, prompt, CASES[name], whole)

    run(work)


def test_logprobs_of_a_burst_are_those_of_its_tokens(run: Run) -> None:
    (prompt,) = prompts(1)
    sampling = msgspec.structs.replace(COPIES, logprobs=2, max_tokens=40)

    async def work(pair: Pair) -> None:
        result = await run_one(pair, prompt, sampling)
        assert [row.token_ids[0] for row in result.logprobs] == result.tokens
        await check_cuts(pair, prompt, sampling, result)

    run(work)


def test_a_seeded_prompt_in_chunks_is_served(run: Run) -> None:
    """vLLM's own way dies of it on CPU (see `ResumeSampler`)."""
    prompt = [3 + (i * 7) % 250 for i in range(3000)]

    async def work(pair: Pair) -> None:
        sampling = Sampling(**(WARM | {"max_tokens": 8}), seed=7)
        whole = await run_one(pair, prompt, sampling)
        handed, _ = await pair.hand_over(prompt, sampling, pair.request_id())
        assert handed.tokens == whole.tokens

    run(work)


def test_what_the_sampler_of_drafts_cannot_do_is_refused_by_name(run: Run) -> None:
    async def work(pair: Pair) -> None:
        sampling = Sampling(**COLD, logprob_token_ids=(101, 102))
        with pytest.raises(BatonError, match=r"logprob_token_ids.*ngram"):
            await pair.decode.add(EngineRequest("asks", 0, Role.DECODE, [5, 6], sampling))

    run(work)


def test_a_stream_moves_between_bursts_and_goes_on(run_both: Run) -> None:
    async def work(pair: Pair) -> None:
        for prompt, sampling in zip(prompts(12), [GREEDY, COPIES] * 6, strict=True):
            whole = await alone(pair, prompt, sampling)
            made, after = await moved(pair, prompt, sampling)
            assert made + after.tokens == whole.tokens, len(prompt)
            assert after.cached == len(prompt) + len(made) - 1, "D computes the last token alone"
        await pair.prefill.empty()

    run_both(work)


def test_above_a_batch_nothing_is_drafted_and_below_it_again(
    run_both: Run, plain: dict[str, list[list[int]]]
) -> None:
    sampling = msgspec.structs.replace(COPIES, max_tokens=40)

    async def work(pair: Pair) -> None:
        (prompt,) = prompts(1)
        found = []
        for streams in (1, 2 * BATCH_MAX, 1):
            drafted = pair.decode.drafted
            asked = [pair.alone(prompt, sampling) for _ in range(streams)]
            results = await asyncio.gather(*asked)
            assert [result.tokens for result in results] == [plain["copies"][0][:40]] * streams
            found.append((pair.decode.drafted - drafted) / (streams * 40))
        print("drafted tokens for each that was made:", *(f"{share:.2f}" for share in found))
        assert found[1] < found[0] / 4
        assert found[2] == found[0]

    run_both(work)
