"""A draft model, an EAGLE head or MTP on D: the text is that of a plain engine whether or not the
drafter has the prompt, and its drafts are as good as in one engine where its KV is handed over,
too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from common.config import Config, from_mapping
from common.engine.open import open_engine
from common.messages import Role, Sampling, Structured, StructureKind
from common.model.embedded import ensure_embedded_model
from tests.e2e.draft_heads import alike_first, write_eagle, write_mtp
from tests.e2e.engine.pair import Pair, Run, Worker, make_config, on_one_loop, open_pair
from tests.e2e.engine.test_moves import moved
from tests.e2e.prompts import prompts
from tests.e2e.reference import plain_answers

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

LEFT_OUT = (8, 10, 11, 12, 15, 17, 19)
"""They take long, and other lengths around them are tried, or in `test_handoff.py`."""
TEXTS = [alike_first(text) for at, text in enumerate(prompts(20)) if at not in LEFT_OUT]
FEW = [*range(3, 7), 9, 10, 11]
"""Those of the `TEXTS` that an EAGLE head is tried with."""
GREEDY = Sampling(max_tokens=32, temperature=0.0, ignore_eos=True)
REGEX = Sampling(
    max_tokens=32,
    temperature=0.0,
    structured=Structured(kind=StructureKind.REGEX, source="([a-z]{3} ){5}[0-9]{10}"),
)


Said = Sequence[list[int]] | Mapping[int, list[int]]
"""What a plain engine says after each of the `TEXTS`, or after some of them."""
CHOSEN = {"draft_model": range(len(TEXTS)), "eagle": FEW, "mtp": FEW}
"""The `TEXTS` that each method is tried with."""
WITH_FOLDERS = ["draft_model", "eagle"]
ALONE_MIN = {"draft_model": 0.9, "eagle": 0.7, "mtp": 0.7}
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


def with_mtp(folder: Path, model: Path) -> Config:
    """P and D run MTP and hand its KV over."""
    raw = msgspec.to_builtins(make_config(folder, model=str(model)))
    speculation = {"method": "mtp", "tokens": 3, "hand_over": True}
    raw["prefill"]["p0"]["speculation"] = raw["decode"]["d0"]["speculation"] = speculation
    return from_mapping({key: raw[key] for key in ("fleet", "model", "prefill", "decode")})


@pytest.fixture(scope="module", params=WITH_FOLDERS)
def cold(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    config = drafting(tmp_path_factory.mktemp("run"), request.param, hand_over=False)
    yield from on_one_loop(open_pair(config))


@pytest.fixture(scope="module", params=WITH_FOLDERS)
def warm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    config = drafting(tmp_path_factory.mktemp("run"), request.param, hand_over=True)
    yield from on_one_loop(open_pair(config))


@pytest.fixture(scope="module")
def mtp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Beside the pair another P, without MTP."""
    folder, other = (tmp_path_factory.mktemp("run") for _ in range(2))
    model = write_mtp(folder / "mtp")
    pair = open_pair(with_mtp(folder, model))
    plain = make_config(other, model=str(model))
    pair.others.append(Worker(open_engine(plain, Role.PREFILL, "p0", "inc-p0")))
    yield from on_one_loop(pair)


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """What one vLLM engine without any of our code and without speculation says."""
    return plain_answers(TEXTS, GREEDY.max_tokens)


async def shares(pair: Pair, plain: Said) -> tuple[float, float]:
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


async def check_all_at_once(pair: Pair, plain: Said) -> None:
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
        assert infos[1].drafter_cold == "all"
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
        assert infos[1].drafter_cold == "canonical"
        after, alone = await shares(pair, plain)
        assert alone > ALONE_MIN[pair.decode.engine.info.speculation]
        assert 0.95 < after / alone < 1.05
        for at in FEW[:4]:
            made, rest = await moved(pair, TEXTS[at], GREEDY)
            assert made + rest.tokens == plain[at], len(TEXTS[at])
            assert rest.cached == len(TEXTS[at]) + len(made) - 1
        await check_all_at_once(pair, plain)

    warm(work)


def test_mtp_layers_are_one_more_region_of_the_handoff(mtp: Run) -> None:
    async def work(pair: Pair) -> None:
        infos = pair.prefill.engine.info, pair.decode.engine.info
        assert infos[0].fingerprint == infos[1].fingerprint
        assert infos[0].fingerprint_parts["drafter"] == "mtp"
        texts = await said_without_drafts(pair)
        after, alone = await shares(pair, texts)
        assert alone > ALONE_MIN["mtp"]
        assert 0.95 < after / alone < 1.05
        regex = await pair.alone(TEXTS[FEW[0]], REGEX, pair.others[0])
        assert (await pair.hand_over(TEXTS[FEW[0]], REGEX))[0].tokens == regex.tokens
        await check_all_at_once(pair, texts)

    mtp(work)


def test_a_prefill_worker_without_a_drafter_hands_over_what_it_has(mtp: Run) -> None:
    """D, whose drafter's KV other prefill workers hand over, starts cold, and says the same."""

    async def work(pair: Pair) -> None:
        texts = await said_without_drafts(pair)
        pair.prefill, pair.others[0] = pair.others[0], pair.prefill
        infos = pair.prefill.engine.info, pair.decode.engine.info
        assert infos[0].fingerprint != infos[1].fingerprint
        assert infos[0].capacity.kv_meaning == infos[1].capacity.kv_meaning != ""
        assert infos[1].drafter_cold == "canonical"
        after, alone = await shares(pair, texts)
        assert after / alone < 0.8
        (result, end) = await pair.hand_over(TEXTS[FEW[0]], GREEDY, pair.request_id())
        assert result.tokens == texts[FEW[0]]
        one = infos[1].capacity.kv_canonical_bytes
        assert end.report.canonical
        assert end.report.payload_bytes == end.report.blocks * one > 0
        pair.prefill, pair.others[0] = pair.others[0], pair.prefill

    mtp(work)


async def said_without_drafts(pair: Pair) -> dict[int, list[int]]:
    """The `TEXTS` that MTP is tried with, as a worker without it goes on with them."""
    (plain,) = pair.others
    answers = await asyncio.gather(*(pair.alone(TEXTS[at], GREEDY, plain) for at in CHOSEN["mtp"]))
    return {at: one.tokens for at, one in zip(CHOSEN["mtp"], answers, strict=True)}
