"""A request against the model: prompt, lengths, defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.clock import ManualClock
from common.config import from_mapping
from common.errors import BatonError, Code
from common.messages import PriorityClass, Sampling
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.intake import Intake
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.text.light import LightText

CONTEXT = 40_000


class IntakeRig:
    def __init__(self, light: LightText, **gateway: Any) -> None:
        config = from_mapping({"model": {"name": "m"}, "gateway": gateway})
        self._intake = Intake(config, light, ManualClock(), self._context)

    async def _context(self) -> int:
        return CONTEXT

    async def completion(self, **body: Any) -> RequestSpec:
        data = json.dumps({"prompt": "hi"} | body).encode()
        return await self._intake.prepare(Kind.COMPLETION, data, "r", 0.0, IgnoredFields())

    async def chat(self, **body: Any) -> RequestSpec:
        data = json.dumps({"messages": [{"role": "user", "content": "hi"}]} | body).encode()
        return await self._intake.prepare(Kind.CHAT, data, "r", 0.0, IgnoredFields())


@pytest.fixture
def intake_rig(light: LightText) -> IntakeRig:
    return IntakeRig(light)


async def test_defaults(intake_rig: IntakeRig) -> None:
    assert (await intake_rig.completion()).sampling == Sampling(max_tokens=16)
    chat = await intake_rig.chat()
    assert chat.sampling == Sampling(max_tokens=CONTEXT - len(chat.prompt_ids))


async def test_nulls_are_defaults(intake_rig: IntakeRig) -> None:
    names = ("temperature", "top_p", "top_k", "stop", "seed", "stream", "max_tokens", "logit_bias")
    spec = await intake_rig.completion(**dict.fromkeys(names))
    assert spec.sampling == Sampling(max_tokens=16)


async def test_default_max_tokens_bounds_chats(light: LightText) -> None:
    intake_rig = IntakeRig(light, default_max_tokens=7)
    assert (await intake_rig.chat()).sampling.max_tokens == 7
    assert (await intake_rig.chat(max_tokens=9)).sampling.max_tokens == 9
    assert (await intake_rig.chat(max_tokens=9, max_completion_tokens=8)).sampling.max_tokens == 8


async def test_everything_honoured_arrives(intake_rig: IntakeRig) -> None:
    spec = await intake_rig.completion(
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
    assert spec.sampling == Sampling(
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
    assert spec.stops == ("a", "b")
    assert (spec.include_stop, spec.stream, spec.include_usage) == (True, True, True)
    assert (spec.continuous_usage, spec.return_token_ids) == (True, True)


@pytest.mark.parametrize(
    ("asked", "got"),
    [(-5, PriorityClass.INTERACTIVE), (0, None), (None, None), (5, PriorityClass.BATCH)],
)
async def test_a_lower_priority_number_is_served_earlier(
    intake_rig: IntakeRig, asked: int | None, got: PriorityClass | None
) -> None:
    for spec in (intake_rig.completion(priority=asked), intake_rig.chat(priority=asked)):
        assert (await spec).priority is got


@pytest.mark.parametrize("priority", [1 << 63, "high", 0.5])
async def test_a_priority_is_a_whole_number(intake_rig: IntakeRig, priority: Any) -> None:
    with pytest.raises(BatonError) as refused:
        await intake_rig.completion(priority=priority)
    assert (refused.value.code, refused.value.param) == (Code.INVALID_REQUEST, "priority")


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]]])
async def test_prompts(intake_rig: IntakeRig, prompt: Any) -> None:
    assert (await intake_rig.completion(prompt=prompt)).prompt_ids == [104, 105]


async def test_text_parts_are_joined_by_lines(intake_rig: IntakeRig) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    spec = await intake_rig.chat(messages=[{"role": "user", "content": parts}])
    assert spec.prompt_ids == [256, 260, *b"a\nb", 257, 261]


async def test_a_long_prompt_is_tokenized_elsewhere_with_the_same_result(
    intake_rig: IntakeRig,
) -> None:
    text = "x" * 20_000
    assert (await intake_rig.completion(prompt=text)).prompt_ids == list(text.encode())


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
async def test_refusals(
    intake_rig: IntakeRig, body: dict[str, Any], code: Code, param: str
) -> None:
    with pytest.raises(BatonError) as refused:
        await intake_rig.completion(**body)
    assert refused.value.code is code
    assert (refused.value.param or "").startswith(param)


async def test_the_last_token_of_the_context_can_be_used(intake_rig: IntakeRig) -> None:
    spec = await intake_rig.completion(prompt=[1] * (CONTEXT - 1))
    assert spec.sampling.max_tokens == 1
    spec = await intake_rig.completion(max_tokens=CONTEXT - 2)
    assert spec.sampling.max_tokens == CONTEXT - 2


async def test_a_lone_surrogate(intake_rig: IntakeRig) -> None:
    with pytest.raises(BatonError) as refused:
        await intake_rig.completion(prompt="\ud800")
    assert refused.value.http.status == 400


async def test_a_bias_beyond_its_bounds_counts_as_the_bound(light: LightText) -> None:
    rig = IntakeRig(light)
    spec = await rig.completion(prompt="x", logit_bias={"5": 500, "6": -500, "7": 1})
    assert spec.sampling.logit_bias == {5: 100.0, 6: -100.0, 7: 1.0}


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_an_assistants_reasoning_goes_to_the_template(
    light: LightText, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    rendered: list[Any] = []

    def render(messages: list[dict[str, Any]]) -> str:
        rendered.extend(messages)
        return "x"

    monkeypatch.setattr(light, "render_chat", render)
    said = [{"role": role, "content": "c", field: "hm"} for role in ("assistant", "user")]
    await IntakeRig(light).chat(messages=said)
    assert rendered[0]["reasoning"] == rendered[0]["reasoning_content"] == "hm"
    assert "reasoning" not in rendered[1]
