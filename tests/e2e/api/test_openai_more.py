"""The `openai` client, streamed and not: schemas, tools, completions, responses."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from tests.e2e.api.asks import TOKENS, Asks
from tests.e2e.api.cases import CALLED, CITY, MODEL, TIGHT, TOOLS
from tests.e2e.api.told import Told

pytestmark = pytest.mark.timeout(600)

X, LESS, BRACE = "120", "60", "125"
"""Token ids of the embedded model are bytes."""
NO_SPACE = {"9": -100, "10": -100, "13": -100, "32": -100}
"""Else the noise that it speaks is mostly spaces, where a schema allows them."""
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "city", "schema": CITY, "strict": True},
}


STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
"""vLLM holds arguments to their schema only where the tool asks for it."""


def check_city(text: str) -> None:
    found = json.loads(text)
    assert set(found) == {"city", "days"}
    assert found["city"] in ("Rome", "Oslo")
    assert found["days"] in (1, 2)


def test_response_format(asks: Asks) -> None:
    told = asks.chat(response_format={"type": "json_object"}, logit_bias={BRACE: 100})
    assert (json.loads(told.only.text), told.only.finish) == ({}, "stop")
    told = asks.chat(response_format=SCHEMA, max_tokens=64, logit_bias=NO_SPACE)
    check_city(told.only.text)


def test_structured_outputs(asks: Asks) -> None:
    def told(max_tokens: int = TOKENS, **structured: Any) -> str:
        body = {"structured_outputs": structured}
        told = asks.chat(max_tokens=max_tokens, extra_body=body, logit_bias=NO_SPACE)
        return told.only.text

    check_city(told(64, json=CITY, **TIGHT))
    assert re.fullmatch("[ab]{4}[0-9]+x?", told(regex="[ab]{4}[0-9]{1,3}x"))
    assert told(choice=["apple", "pear"]) in ("apple", "pear")
    assert told(grammar='root ::= "yes" | "no"') in ("yes", "no")


def check_calls(told: Told, names: set[str]) -> None:
    assert told.only.finish in ("tool_calls", "stop")
    assert told.only.calls
    for name, arguments in told.only.calls:
        assert name in names
        check_city(arguments)


def test_a_tool_that_must_be_called(asks: Asks) -> None:
    about = {"tools": STRICT, "tool_choice": "required", "logit_bias": NO_SPACE}
    told = asks.chat(**about, max_tokens=200)
    check_calls(told, {"weather", "news"})


def test_a_tool_that_is_named(asks: Asks) -> None:
    named = {"type": "function", "function": {"name": "news"}}
    told = asks.chat(tools=STRICT, tool_choice=named, max_tokens=200, logit_bias=NO_SPACE)
    check_calls(told, {"news"})
    assert len(told.only.calls) == 1


def test_several_tools_at_once_unless_forbidden(asks: Asks, stream: bool) -> None:
    """Biased towards beginning another call, so that only the limit of tokens ends it."""
    bias = NO_SPACE | {LESS: 20}
    wants = {"tools": STRICT, "tool_choice": "required", "logit_bias": bias, "max_tokens": 300}
    told = asks.chat(**wants)
    single = asks.chat(**wants, parallel_tool_calls=False)
    if not stream:  # vLLM's parser finds no call in a whole answer whose last one is cut
        assert told.only.text.count("<tool_call>") > 1
        assert len(single.only.calls) == 1
        return
    assert len(told.only.calls) > 1
    for name, arguments in told.only.calls[:-1]:
        assert name in {"weather", "news"}
        check_city(arguments)
    assert single.only.calls == told.only.calls[:1]


def test_a_conversation_after_a_tool_was_called(asks: Asks) -> None:
    assert asks.chat(messages=CALLED, tools=TOOLS).only.text


def test_a_completion(asks: Asks) -> None:
    told = asks.completion()
    assert told.only.finish == "length"
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (5, TOKENS)
    ids = asks.completion(prompt=list(b"hello"))
    assert ids.only.text == told.only.text
    stop = told.only.text[2]
    ended = asks.completion(stop=stop)
    assert ended.only.text == told.only.text[: told.only.text.index(stop)]


def test_echo(asks: Asks) -> None:
    plain = asks.completion().only.text
    told = asks.completion(echo=True, logprobs=1)
    assert told.only.text == "hello" + plain
    assert len(told.only.logprobs) == len(b"hello") + TOKENS
    assert told.only.logprobs[0][1] is None, "nothing stands before the first"


def test_several_prompts_and_choices(asks: Asks) -> None:
    told = asks.completion(prompt=["one", "two"], n=2, temperature=1.0, seed=3)
    assert sorted(told.choices) == [0, 1, 2, 3]
    assert told.usage.completion_tokens == 4 * TOKENS


def test_completion_logprobs_and_biases(asks: Asks) -> None:
    told = asks.completion(logprobs=2, logit_bias={X: 100}, frequency_penalty=-1.0)
    assert told.only.text == "x" * TOKENS
    assert [token for token, _ in told.only.logprobs] == ["x"] * TOKENS


def test_a_response(client: openai.OpenAI, stream: bool) -> None:
    about: Any = {"model": MODEL, "input": "hello", "max_output_tokens": 64, "temperature": 0}
    about["extra_body"] = {"logit_bias": NO_SPACE}
    about["text"] = {"format": {"type": "json_schema", "name": "city", "schema": CITY}}
    if not stream:
        check_city(client.responses.create(**about).output_text)
        return
    text, last = "", None
    for event in client.responses.create(**about, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        last = event
    check_city(text)
    assert last is not None
    assert last.type == "response.completed"
    assert last.response.output_text == text
    assert last.response.usage.output_tokens > 0


def test_a_response_that_calls_a_function(client: openai.OpenAI, stream: bool) -> None:
    about: Any = {"model": MODEL, "input": "hello", "max_output_tokens": 200, "temperature": 0}
    about["extra_body"] = {"logit_bias": NO_SPACE}
    about["tools"] = [{"type": "function", "name": "news", "parameters": CITY, "strict": True}]
    about["tool_choice"] = {"type": "function", "name": "news"}
    if stream:
        events = list(client.responses.create(**about, stream=True))
        output = events[-1].response.output
    else:
        output = client.responses.create(**about).output
    (call,) = [item for item in output if item.type == "function_call"]
    assert call.name == "news"
    check_city(call.arguments)
