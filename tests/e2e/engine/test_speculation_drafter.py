"""A draft model or an EAGLE head on D: the text is that of a plain engine whether or not the
drafter has the prompt, and its drafts are as good as in one engine where its KV is handed over,
too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from common.config import Config, from_mapping
from common.messages import Sampling
from common.model.embedded import ensure_embedded_model
from tests.e2e.eagle_head import alike_first, write_eagle
from tests.e2e.engine.pair import Pair, Run, make_config, on_one_loop, open_pair
from tests.e2e.engine.test_moves import moved
from tests.e2e.prompts import prompts
from tests.e2e.reference import plain_answers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEFT_OUT = (8, 10, 11, 12, 15, 17, 19)
"""They take long, and other lengths around them are tried, or in `test_handoff.py`."""
TEXTS = [alike_first(text) for at, text in enumerate(prompts(20)) if at not in LEFT_OUT]
FEW = [*range(3, 7), 9, 10, 11]
"""Those of the `TEXTS` that an EAGLE head is tried with."""
GREEDY = Sampling(max_tokens=32, temperature=0.0, ignore_eos=True)
BLOCK = 128


CHOSEN = {"draft_model": range(len(TEXTS)), "eagle": FEW}
"""The `TEXTS` that each method is tried with."""
ALONE_MIN = {"draft_model": 0.9, "eagle": 0.7}
"""The share of drafted tokens that is accepted in one engine, at least."""


def drafting(folder: Path, method: str, *, hand_over: bool) -> Config:
    """The model drafts for itself, or as an EAGLE head: with the same KV, most drafts are right."""
    raw = msgspec.to_builtins(make_config(folder))
    head = method == "eagle"
    drafter = write_eagle(folder / "head") if head else ensure_embedded_model()
    speculation = {
        "method": method,
        "tokens": 3,
        "drafter": str(drafter),
        "hand_over": hand_over,
    }
    raw["decode"]["d0"]["speculation"] = speculation
    if hand_over:
        raw["prefill"]["p0"]["speculation"] = speculation
    return from_mapping({key: raw[key] for key in ("fleet", "model", "prefill", "decode")})


@pytest.fixture(scope="module", params=CHOSEN)
def cold(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    config = drafting(tmp_path_factory.mktemp("run"), request.param, hand_over=False)
    yield from on_one_loop(open_pair(config))


@pytest.fixture(scope="module", params=CHOSEN)
def warm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    config = drafting(tmp_path_factory.mktemp("run"), request.param, hand_over=True)
    yield from on_one_loop(open_pair(config))


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """What one vLLM engine without any of our code and without speculation says."""
    return plain_answers(TEXTS, GREEDY.max_tokens)


async def shares(pair: Pair, plain: list[list[int]]) -> tuple[float, float]:
    """The share of drafted tokens that was accepted after handoffs, and where D computed the
    prompts itself, as one engine does. The text is that of the plain engine in either case."""
    found, method = [], pair.decode.engine.info.speculation
    for handed in (True, False):
        drafted, accepted = pair.decode.drafted, pair.decode.accepted
        for at in CHOSEN[method]:
            if handed:
                result, end = await pair.hand_over(TEXTS[at], GREEDY, salt=pair.request_id())
                assert not end.error, end.message
                assert result.cached == len(TEXTS[at]) - 1
            else:
                result = await pair.alone(TEXTS[at], GREEDY)
            assert result.tokens == plain[at], len(TEXTS[at])
        found.append((pair.decode.accepted - accepted) / (pair.decode.drafted - drafted))
    print(f"{method}: accepted after a handoff {found[0]:.3f}, in one engine {found[1]:.3f}")
    return found[0], found[1]


async def check_all_at_once(pair: Pair, plain: list[list[int]]) -> None:
    """Prefix caches have what came before."""
    chosen = CHOSEN[pair.decode.engine.info.speculation]
    answers = await asyncio.gather(*(pair.hand_over(TEXTS[at], GREEDY) for at in chosen))
    assert [result.tokens for result, _ in answers] == [plain[at] for at in chosen]
    await pair.prefill.empty()
    await pair.decode.empty()


def test_a_drafter_without_the_prompt_drafts_poorly_and_changes_no_text(
    cold: Run, plain: list[list[int]]
) -> None:
    """So the figure of the next test is one of KV that was handed over."""

    async def work(pair: Pair) -> None:
        infos = pair.prefill.engine.info, pair.decode.engine.info
        assert infos[0].fingerprint == infos[1].fingerprint, "P need not have the drafter"
        assert infos[0].capacity.kv_block_bytes == infos[1].capacity.kv_block_bytes
        assert infos[1].drafter_cold
        after, alone = await shares(pair, plain)
        assert after / alone < 0.8
        await check_all_at_once(pair, plain)

    cold(work)


def test_with_its_kv_handed_over_a_drafter_is_as_good_as_in_one_engine(
    warm: Run, plain: list[list[int]]
) -> None:
    async def work(pair: Pair) -> None:
        infos = pair.prefill.engine.info, pair.decode.engine.info
        assert infos[0].fingerprint == infos[1].fingerprint
        assert "drafter" in infos[0].fingerprint_parts
        assert not infos[1].drafter_cold
        after, alone = await shares(pair, plain)
        assert alone > ALONE_MIN[pair.decode.engine.info.speculation]
        assert 0.95 < after / alone < 1.05
        for at in FEW[:4]:
            made, rest = await moved(pair, TEXTS[at], GREEDY)
            assert made + rest.tokens == plain[at], len(TEXTS[at])
            assert rest.cached == len(TEXTS[at]) + len(made) - 1
        await check_all_at_once(pair, plain)

    warm(work)
