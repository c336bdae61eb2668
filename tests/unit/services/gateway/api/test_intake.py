"""A request against the model: prompt, lengths, defaults."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from common.clock import ManualClock
from common.config import from_mapping
from common.errors import BatonError, Code
from common.messages import Sampling
from services.gateway.api.intake import INLINE_CHARS_MAX, Intake
from services.gateway.api.kinds import Call, Kind
from services.gateway.text.light import LightText

CONTEXT = 40_000


class Asking:
    def __init__(self, light: LightText, **gateway: Any) -> None:
        config = from_mapping({"model": {"name": "m"}, "gateway": gateway})
        self._executor = ThreadPoolExecutor(1)
        self._intake = Intake(config, light, ManualClock(), self._executor, self._context)

    async def _context(self) -> int:
        return CONTEXT

    async def completion(self, **body: Any) -> Call:
        data = json.dumps({"prompt": "hi"} | body).encode()
        return await self._intake.call(Kind.COMPLETION, data, "r", 0.0)

    async def chat(self, **body: Any) -> Call:
        data = json.dumps({"messages": [{"role": "user", "content": "hi"}]} | body).encode()
        return await self._intake.call(Kind.CHAT, data, "r", 0.0)


@pytest.fixture
def asking(light: LightText) -> Asking:
    return Asking(light)


async def test_defaults(asking: Asking) -> None:
    assert (await asking.completion()).sampling == Sampling(max_tokens=16)
    chat = await asking.chat()
    assert chat.sampling == Sampling(max_tokens=CONTEXT - len(chat.prompt_ids))


async def test_nulls_are_defaults(asking: Asking) -> None:
    names = ("temperature", "top_p", "top_k", "stop", "seed", "stream", "max_tokens", "logit_bias")
    call = await asking.completion(**dict.fromkeys(names))
    assert call.sampling == Sampling(max_tokens=16)


async def test_default_max_tokens_bounds_chats(light: LightText) -> None:
    asking = Asking(light, default_max_tokens=7)
    assert (await asking.chat()).sampling.max_tokens == 7
    assert (await asking.chat(max_tokens=9)).sampling.max_tokens == 9
    assert (await asking.chat(max_tokens=9, max_completion_tokens=8)).sampling.max_tokens == 8


async def test_everything_honoured_arrives(asking: Asking) -> None:
    call = await asking.completion(
        max_tokens=9,
        min_tokens=2,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        seed=-5,
        ignore_eos=True,
        stop=["a", "b", "a"],
        stop_token_ids=[1],
        logit_bias={"5": -100},
        include_stop_str_in_output=True,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        return_token_ids=True,
    )
    assert call.sampling == Sampling(
        max_tokens=9,
        min_tokens=2,
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        seed=-5,
        ignore_eos=True,
        stop_token_ids=(1,),
        logit_bias={5: -100.0},
    )
    assert call.stops == ("a", "b")
    assert (call.include_stop, call.stream, call.include_usage) == (True, True, True)
    assert (call.continuous_usage, call.return_token_ids) == (True, True)


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]]])
async def test_prompts(asking: Asking, prompt: Any) -> None:
    assert (await asking.completion(prompt=prompt)).prompt_ids == [104, 105]


async def test_text_parts_are_joined_by_lines(asking: Asking) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = await asking.chat(messages=[{"role": "user", "content": parts}])
    assert call.prompt_ids == [256, 260, *b"a\nb", 257, 261]


async def test_a_long_prompt_is_tokenized_elsewhere_with_the_same_result(asking: Asking) -> None:
    text = "x" * (INLINE_CHARS_MAX + 1)
    assert (await asking.completion(prompt=text)).prompt_ids == list(text.encode())


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"prompt": ["a", "b"]}, Code.UNSUPPORTED_PARAMETER, "prompt"),
        ({"prompt": [[1], [2]]}, Code.UNSUPPORTED_PARAMETER, "prompt"),
        ({"prompt": [1, "a"]}, Code.INVALID_REQUEST, "prompt"),
        ({"prompt": [263]}, Code.INVALID_REQUEST, "prompt"),
        ({"prompt": [-1]}, Code.INVALID_REQUEST, "prompt"),
        ({"stop_token_ids": [263]}, Code.INVALID_REQUEST, "stop_token_ids"),
        ({"logit_bias": {"263": 1}}, Code.INVALID_REQUEST, "logit_bias"),
        ({"min_tokens": 17}, Code.INVALID_REQUEST, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, Code.INVALID_REQUEST, "stream_options"),
        ({"model": "other"}, Code.MODEL_NOT_FOUND, "model"),
        ({"prompt": "x" * CONTEXT}, Code.CONTEXT_LENGTH_EXCEEDED, "prompt"),
        ({"prompt": [1] * CONTEXT}, Code.CONTEXT_LENGTH_EXCEEDED, "prompt"),
        ({"max_tokens": CONTEXT - 1}, Code.CONTEXT_LENGTH_EXCEEDED, "max_tokens"),
    ],
)
async def test_refusals(asking: Asking, body: dict[str, Any], code: Code, param: str) -> None:
    with pytest.raises(BatonError) as refused:
        await asking.completion(**body)
    assert refused.value.code is code
    assert (refused.value.param or "").startswith(param)


async def test_the_last_token_of_the_context_can_be_used(asking: Asking) -> None:
    call = await asking.completion(prompt=[1] * (CONTEXT - 1))
    assert call.sampling.max_tokens == 1
    call = await asking.completion(max_tokens=CONTEXT - 2)
    assert call.sampling.max_tokens == CONTEXT - 2


async def test_a_lone_surrogate(asking: Asking) -> None:
    with pytest.raises(BatonError) as refused:
        await asking.completion(prompt="\ud800")
    assert refused.value.face.http_status == 400
