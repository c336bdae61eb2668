"""Images over two real vLLM engines: the tokens of one engine, and the encoder runs once.

vLLM counts the runs of its encoder itself, where its configuration asks for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from common.config import Config, from_mapping
from common.engine.port import EngineRequest
from common.engine.vllm.engine import VllmEngine
from common.errors import BatonError
from common.messages import ImageFeatures, Role
from services.gateway.full_api.port import RenderedPrompt
from tests.e2e.engine.pair import (
    ANSWER_MS,
    ENGINE,
    GREEDY,
    LOAD_TIMEOUT_MS,
    Pair,
    Result,
    Run,
    Worker,
    on_one_loop,
    open_pair,
)
from tests.e2e.engine.rendered import rendered
from tests.rigs.images import chats, image_part, picture, text_part, user
from tests.zoo.vision import vision_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

TEXT = "what do you see in this picture, which is one of a long series? " * 3
CHATS = [
    user(text_part(TEXT), image_part(picture(1, 220, 180)), text_part("and then?")),
    user(image_part(picture(2, 200, 200)), image_part(picture(3, 30, 100)), text_part(TEXT)),
    user(text_part(TEXT), image_part(picture(4, 220, 180)), text_part("and then?")),
]
FIFTY = 50
#: Smaller than any of these prompts, and than the second image is away from its end.
CHUNK = 160


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def prompts(model: Path) -> list[RenderedPrompt]:
    return rendered(model, CHATS)


@pytest.fixture(scope="module")
def fifty(model: Path) -> list[RenderedPrompt]:
    return rendered(model, chats(FIFTY))


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from on_one_loop(open_pair(config(model, tmp_path_factory.mktemp("run"))))


def config(model: Path, run_dir: Path) -> Config:
    args = {"enforce_eager": True, "enable_mm_processor_stats": True}
    engine = ENGINE | {"block_tokens": 32, "max_num_batched_tokens": CHUNK, "args": args}
    worker = {"engine": engine, "kv": {"load_timeout_ms": LOAD_TIMEOUT_MS, "answer_ms": ANSWER_MS}}
    return from_mapping(
        {
            "fleet": {"run_dir": str(run_dir)},
            "model": {"path": str(model), "dtype": "float32"},
            "prefill": {"p0": worker},
            "decode": {"d0": worker},
        }
    )


def both(
    pair: Pair, prompt: RenderedPrompt, salt: str | None = None
) -> tuple[EngineRequest, EngineRequest]:
    at_p, at_d = pair.requests(prompt.token_ids, salt=salt)
    images = tuple(prompt.images)
    return replace(at_p, images=images), replace(at_d, images=images)


async def handed_over(pair: Pair, at_p: EngineRequest, at_d: EngineRequest) -> Result:
    await pair.prefill.add(at_p)
    result = await pair.decode.add(at_d)
    await asyncio.wait_for(result.done.wait(), 60)
    await pair.prefill.kv_end(at_p.request_id, "send")
    end = await pair.decode.kv_end(at_p.request_id, "receive")
    assert end.error == "", end.message
    assert result.cached == len(at_d.prompt_ids) - 1
    return result


async def alone(pair: Pair, request: EngineRequest) -> Result:
    """On D, without P; a salt of its own keeps it off every cache of KV."""
    name = pair.request_id()
    result = await pair.decode.add(
        replace(request, request_id=name, role=Role.DECODE, ticket=None, cache_salt=name)
    )
    await asyncio.wait_for(result.done.wait(), 60)
    return result


async def encoded(worker: Worker) -> int:
    """Runs of its encoder since the last call."""
    engine = worker.engine
    assert isinstance(engine, VllmEngine)
    (found,) = await engine._client.collective_rpc_async("get_encoder_timing_stats")
    return sum(one["num_encoder_calls"] for one in found.values())


def without_pixels(image: ImageFeatures) -> ImageFeatures:
    """The same image for every cache, and another one for an encoder: all its floats are zero."""
    from vllm.multimodal.inputs import MultiModalKwargsItem
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    item = MsgpackDecoder(MultiModalKwargsItem).decode(image.data)
    item["pixel_values"].data = item["pixel_values"].data * 0
    (data,) = MsgpackEncoder(size_threshold=1 << 62).encode(item)
    return msgspec.structs.replace(image, data=bytes(data))


def test_images_are_encoded_once_by_p_and_never_by_d(
    run: Run, prompts: list[RenderedPrompt]
) -> None:
    """D gets images whose pixels are gone: it would say something else if it looked at them."""

    async def work(pair: Pair) -> None:
        for prompt in prompts:
            assert len(prompt.token_ids) > CHUNK, "P must take several steps"
            await encoded(pair.prefill), await encoded(pair.decode)
            at_p, at_d = both(pair, prompt)
            blind = replace(at_d, images=tuple(map(without_pixels, at_d.images)))
            result = await handed_over(pair, at_p, blind)
            assert await encoded(pair.prefill) == 1, "images of one step are encoded together"
            assert await encoded(pair.decode) == 0
            assert result.tokens == (await alone(pair, at_d)).tokens
        await pair.prefill.empty()
        await pair.decode.empty()

    run(work)


def test_no_image_of_fifty_chats_is_encoded_twice(run: Run, fifty: list[RenderedPrompt]) -> None:
    """What D lacks it would have to look at: its pixels are gone."""
    seen, calls = set[str](), list[int]()

    async def forget(pair: Pair) -> None:
        await encoded(pair.prefill), await encoded(pair.decode)

    run(forget)
    for prompt in fifty:

        async def hand_over(pair: Pair, prompt: RenderedPrompt = prompt) -> None:
            at_p, at_d = both(pair, prompt, salt=pair.request_id())
            blind = replace(at_d, images=tuple(map(without_pixels, at_d.images)))
            await handed_over(pair, at_p, blind)
            assert await encoded(pair.decode) == 0
            calls.append(await encoded(pair.prefill))

        run(hand_over)
        fresh = {image.digest for image in prompt.images} - seen
        assert bool(fresh) <= calls[-1] <= len(fresh), "each once, those of one step together"
        seen |= fresh
    assert 0 < sum(calls) <= len(seen) < sum(len(prompt.images) for prompt in fifty)


def test_prompts_that_differ_by_their_image_alone_share_no_more_than_the_text_before_it(
    run: Run, prompts: list[RenderedPrompt]
) -> None:
    first, _, other = prompts
    assert first.token_ids == other.token_ids

    async def work(pair: Pair) -> None:
        for prompt in (first, other, first):
            at_p, at_d = both(pair, prompt, salt="shared")
            result = await handed_over(pair, at_p, at_d)
            assert result.tokens == (await alone(pair, at_d)).tokens

    run(work)


def test_d_that_lost_its_prefill_worker_encodes_the_images_itself(
    run: Run, prompts: list[RenderedPrompt]
) -> None:
    """Nothing listens where the ticket points."""

    async def work(pair: Pair) -> None:
        for prompt in prompts[:2]:
            _, at_d = both(pair, prompt, salt=pair.request_id())
            expected = (await alone(pair, at_d)).tokens
            await encoded(pair.decode)
            assert at_d.ticket is not None
            nowhere = msgspec.structs.replace(at_d.ticket, kv_address="127.0.0.1:9")
            result = await pair.decode.add(replace(at_d, ticket=nowhere))
            await asyncio.wait_for(result.done.wait(), 90)
            assert result.tokens == expected

    run(work)


def test_an_answer_goes_on_after_any_of_its_tokens(run: Run, prompts: list[RenderedPrompt]) -> None:
    async def work(pair: Pair) -> None:
        for prompt in prompts[:2]:
            at_p, at_d = both(pair, prompt, salt=pair.request_id())
            whole = (await handed_over(pair, at_p, at_d)).tokens
            for emitted in (1, 7, 15):
                at_p, at_d = both(pair, prompt, salt=pair.request_id())
                so_far, left = [*prompt.token_ids, *whole[:emitted]], 16 - emitted
                sampling = msgspec.structs.replace(GREEDY, max_tokens=left)
                at_p = replace(at_p, prompt_ids=so_far)
                at_d = replace(at_d, prompt_ids=so_far, emitted=emitted, sampling=sampling)
                rest = await handed_over(pair, at_p, at_d)
                assert whole[:emitted] + rest.tokens == whole, emitted

    run(work)


def test_an_image_outside_its_prompt_or_of_torn_bytes_is_refused_by_name(
    run: Run, prompts: list[RenderedPrompt]
) -> None:
    async def work(pair: Pair) -> None:
        _, at_d = both(pair, prompts[0])
        (image,) = at_d.images
        bad = {
            "not within its prompt": msgspec.structs.replace(image, offset=len(at_d.prompt_ids)),
            "cannot be decoded": msgspec.structs.replace(image, data=image.data[:-1]),
        }
        for sentence, torn in bad.items():
            with pytest.raises(BatonError, match=sentence):
                await pair.decode.add(replace(at_d, images=(torn,)))
        assert (await alone(pair, at_d)).tokens

    run(work)
