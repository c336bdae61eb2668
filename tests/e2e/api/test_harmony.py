"""gpt-oss: its prompts are made of messages of their own kind. A helper process makes them, and the
gateway generates from what was rendered there. No engine, and the smallest model of its type."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from openai_harmony import load_harmony_encoding
from vllm.renderers import online_renderer

from common.config import from_mapping
from common.errors import BatonError, Code
from common.messages import Delta
from common.model.embedded import ensure_embedded_model
from services.gateway.api.routes import Route
from services.gateway.full_api.port import ApiRequest, FullApi
from tests.e2e.api.cases import MODEL, TOOLS
from tests.e2e.api.test_fabricated import FLEET, answered, api_request, built, opened, run

pytestmark = pytest.mark.timeout(300)

ENCODING = load_harmony_encoding("HarmonyGptOss")
QUESTION = "How much are two and two?"
ANSWER = "<|channel|>final<|message|>It is 4.<|return|>"
TALK = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello to you."},
    {"role": "user", "content": QUESTION},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALLED = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "It rains."},
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> FullApi:
    model = tmp_path_factory.mktemp("harmony") / "model"
    shutil.copytree(ensure_embedded_model(), model)
    about = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}
    (model / "config.json").write_text(json.dumps(about | {"num_hidden_layers": 2}))
    parsers = {"tool_parser": "openai", "reasoning_parser": "openai_gptoss"}
    return built(from_mapping({"model": {"path": str(model), "name": MODEL} | parsers}), model)


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The prompts that were rendered, anywhere."""
    prompts: list[list[int]] = []
    render = online_renderer.render_for_completion

    def noted(messages: Any) -> list[int]:
        prompts.append(render(messages))
        return prompts[-1]

    monkeypatch.setattr(online_renderer, "render_for_completion", noted)
    return prompts


REQUESTS = {
    "chat": api_request(messages=TALK),
    "a chat with tools": api_request(messages=[*CALLED, *TALK], tools=TOOLS),
    "a stream": api_request(messages=TALK, stream=True),
    "responses": api_request(Route.RESPONSES, input=TALK, instructions="Be brief."),
    "messages": api_request(Route.MESSAGES, messages=TALK, system="Be brief."),
    "a batch": api_request(Route.BATCH, messages=[TALK, TALK[:1]]),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_each_prompt_is_rendered_once_and_generated_from(
    api: FullApi, rendered: list[list[int]], name: str
) -> None:
    asked = REQUESTS[name]
    prompts = len(asked_for(asked)) if asked.route is Route.BATCH else 1

    async def speak() -> None:
        await opened(prompts)
        for _, stream, _ in FLEET.opened:
            stream.push(Delta("r", 1, 0, ids_of(ANSWER), finish_reason="stop"))

    assert "It is 4." in json.dumps(run(answered(api, asked, speak)))
    assert [spec.prompt_ids for spec, _, _ in FLEET.opened] == rendered
    assert len(rendered) == prompts
    text = ENCODING.decode(rendered[0])
    assert text.endswith(f"<|start|>user<|message|>{QUESTION}<|end|><|start|>assistant")
    assert ("It rains." in text) == ("tools" in name)
    assert ("Be brief." in text) == (asked.route in (Route.RESPONSES, Route.MESSAGES))


def test_a_plain_completion_is_its_text(api: FullApi, rendered: list[list[int]]) -> None:
    asked = ApiRequest(Route.COMPLETION, b'{"prompt":"two and"}', REQUESTS["chat"].origin)

    async def speak() -> None:
        await opened(1)
        ((spec, stream, _),) = FLEET.opened
        assert bytes(spec.prompt_ids) == b"two and"
        stream.push(Delta("r", 1, 0, list(b"x"), finish_reason="length"))

    assert run(answered(api, asked, speak))["choices"][0]["text"] == "x"
    assert rendered == []


def test_what_would_show_the_conversation_again_is_refused(api: FullApi) -> None:
    asked = api_request(Route.RESPONSES, input="hello", enable_response_messages=True)
    with pytest.raises(BatonError) as refused:
        run(api.answer(asked))
    assert refused.value.code is Code.UNSUPPORTED_PARAMETER
    assert refused.value.param == "enable_response_messages"


def ids_of(text: str) -> list[int]:
    return list(ENCODING.encode(text, allowed_special="all"))


def asked_for(asked: ApiRequest) -> list[Any]:
    messages: list[Any] = json.loads(asked.body)["messages"]
    return messages
