"""A model with code of its own, a tokenizer and a chat template from elsewhere, and what
`[engine.args]` says of text: workers and both paths of the gateway take them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.reference import plain_answers
from tests.rigs.fleet import Fleet, fleet
from tests.rigs.own_code_model import make_own_code_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

PROMPT = [33 + (index * 7919) % 90 for index in range(400)]
MAX_TOKENS = 12
MAX_LOGPROBS = 3
TEMPLATE = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"


@pytest.fixture(scope="module")
def own_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("own")
    model, tokenizer = make_own_code_model(folder / "own-model"), folder / "tokenizer"
    tokenizer.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (model / file).rename(tokenizer / file)
    (folder / "template.jinja").write_text(TEMPLATE)
    arguments: dict[str, Any] = {
        "ENGINE__ARGS__TRUST_REMOTE_CODE": True,
        "ENGINE__ARGS__ENFORCE_EAGER": True,
        "ENGINE__ARGS__TOKENIZER": str(tokenizer),
        "ENGINE__ARGS__MAX_LOGPROBS": MAX_LOGPROBS,
        "ENGINE__ARGS__GENERATION_CONFIG": "vllm",
        "MODEL__CHAT_TEMPLATE": str(folder / "template.jinja"),
        "MODEL__DTYPE": "float32",
        "MODEL__MAX_MODEL_LEN": 4096,
    }
    env = {f"BATON_{key}": json.dumps(value) for key, value in arguments.items()}
    with fleet("--model", str(model), env=env) as running:
        yield running.wait_ready()


def ask(own_fleet: Fleet, route: str, **body: Any) -> httpx.Response:
    body = {"model": "own-model", "temperature": 0, "max_tokens": MAX_TOKENS, **body}
    return httpx.post(f"{own_fleet.url}{route}", json=body, timeout=180)


def test_its_answers_are_those_of_a_plain_engine_and_its_kv_moved(own_fleet: Fleet) -> None:
    more = {"ignore_eos": True, "return_token_ids": True}
    answer = ask(own_fleet, "/v1/completions", prompt=PROMPT, **more).json()
    (expected,) = plain_answers([PROMPT], MAX_TOKENS)
    assert answer["choices"][0]["token_ids"] == expected
    account = own_fleet.ctl("explain", answer["id"].split("-", 1)[1])
    assert account["attempts"][0]["kv"]["blocks"] > 0


def test_the_full_api_takes_the_model_and_its_limits(own_fleet: Fleet) -> None:
    told = ask(own_fleet, "/v1/completions", prompt="Hello", logprobs=MAX_LOGPROBS)
    assert told.status_code == 200, told.text
    assert len(told.json()["choices"][0]["logprobs"]["top_logprobs"][0]) >= MAX_LOGPROBS
    refused = ask(own_fleet, "/v1/completions", prompt="Hello", logprobs=MAX_LOGPROBS + 1)
    assert refused.status_code == 400
    assert "max" in refused.json()["error"]["message"]


def test_both_paths_render_the_template_that_the_file_names(own_fleet: Fleet) -> None:
    messages = [{"role": "user", "content": "hi"}]
    plain = ask(own_fleet, "/v1/chat/completions", messages=messages).json()
    full = ask(own_fleet, "/v1/chat/completions", messages=messages, logprobs=True).json()
    assert plain["usage"]["prompt_tokens"] == full["usage"]["prompt_tokens"] == len("<hi>")
    assert plain["choices"][0]["message"] == full["choices"][0]["message"]
