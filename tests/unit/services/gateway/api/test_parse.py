"""Which bodies pass, and what is named when one does not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BatonError, Code
from services.gateway.api.fields import UNSUPPORTED
from services.gateway.api.ignored import NAMES_MAX, IgnoredFields
from services.gateway.api.kinds import Kind
from services.gateway.api.parse import parse

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"prompt": "hi"}
BASE = {Kind.CHAT: CHAT, Kind.COMPLETION: COMPLETION}
BOTH = list(Kind)


def refusal(kind: Kind, **fields: Any) -> BatonError:
    with pytest.raises(BatonError) as refused:
        parse(kind, json.dumps(BASE[kind] | fields).encode(), IgnoredFields())
    return refused.value


VLLM_BENCH_CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "max_completion_tokens": 8,
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
}
VLLM_BENCH_COMPLETION = {
    "model": "m",
    "prompt": "hi",
    "repetition_penalty": 1.0,
    "max_tokens": 8,
    "logprobs": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.0,
}
ANSWER_SENT_BACK: dict[str, Any] = {
    "role": "assistant",
    "content": "a",
    "refusal": None,
    "annotations": [],
    "audio": None,
    "function_call": None,
    "tool_calls": None,
}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.CHAT, VLLM_BENCH_CHAT),
        (Kind.COMPLETION, VLLM_BENCH_COMPLETION),
        (Kind.CHAT, {"messages": [*CHAT["messages"], ANSWER_SENT_BACK, *CHAT["messages"]]}),
        (Kind.CHAT, {"messages": [{"role": "tool", "tool_call_id": "x", "content": "1"}]}),
        (Kind.COMPLETION, {"prompt": [1, 2, 3]}),
        (Kind.COMPLETION, {"prompt": [[1, 2, 3]]}),
        (Kind.COMPLETION, {"prompt": ["hi"]}),
    ],
)
def test_what_clients_send_passes(kind: Kind, body: dict[str, Any]) -> None:
    parse(kind, json.dumps(body).encode(), IgnoredFields())


@pytest.mark.parametrize("kind", BOTH)
def test_no_op_values_pass(kind: Kind) -> None:
    for name, allowed in UNSUPPORTED[kind].items():
        for value in (None, *allowed):
            parse(kind, json.dumps(BASE[kind] | {name: value}).encode(), IgnoredFields())


@pytest.mark.parametrize("kind", BOTH)
def test_every_unsupported_field_is_refused_by_name(kind: Kind) -> None:
    for name in UNSUPPORTED[kind]:
        error = refusal(kind, **{name: "something else"})
        assert (error.code, error.param) == (Code.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Kind.CHAT, "n", 2),
        (Kind.CHAT, "n", True),
        (Kind.CHAT, "logprobs", True),
        (Kind.COMPLETION, "logprobs", 0),
        (Kind.CHAT, "tools", [{"type": "function"}]),
        (Kind.CHAT, "tool_choice", "auto"),
        (Kind.CHAT, "response_format", {"type": "json_object"}),
        (Kind.COMPLETION, "echo", True),
        (Kind.COMPLETION, "best_of", 2),
        (Kind.COMPLETION, "suffix", "x"),
        (Kind.CHAT, "guided_json", {}),
    ],
)
def test_refused_by_name(kind: Kind, field: str, value: object) -> None:
    error = refusal(kind, **{field: value})
    assert (error.code, error.param) == (Code.UNSUPPORTED_PARAMETER, field)
    assert field in error.message


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", "many"),
        ("max_tokens", 2**70),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("seed", 2**63),
        ("stop", ""),
        ("stop", 1),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "x"),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": "x"}),
        ("stream", "yes"),
        ("ignore_eos", 2),
        ("stream_options", True),
        ("model", 7),
        ("user", 7),
    ],
)
def test_ranges_and_types(kind: Kind, field: str, value: object) -> None:
    error = refusal(kind, **{field: value})
    assert error.code is Code.INVALID_REQUEST
    assert (error.param or "").startswith(field)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"content": "hi"}], "messages"),
        ([{"role": "user", "content": 1}], "messages"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls"),
    ],
)
def test_messages(messages: object, param: str) -> None:
    error = refusal(Kind.CHAT, messages=messages)
    assert (error.param or "").startswith(param)
    assert error.http.status == 400


def ignored_of(kind: Kind, **fields: Any) -> IgnoredFields:
    return noted(kind, IgnoredFields(), fields)


def noted(kind: Kind, ignored: IgnoredFields, fields: dict[str, Any]) -> IgnoredFields:
    parse(kind, json.dumps(BASE[kind] | fields).encode(), ignored)
    return ignored


@pytest.mark.parametrize("kind", BOTH)
def test_unknown_fields_are_ignored_by_name(kind: Kind) -> None:
    assert ignored_of(kind, mood="good", store=True).header == "mood, store"
    options = {"include_usage": True, "include_obfuscation": True}
    ignored = ignored_of(kind, stream=True, stream_options=options)
    assert ignored.header == "stream_options.include_obfuscation"
    assert ignored_of(kind, user="u", session_id="s", prompt_cache_key="k").header == ""


@pytest.mark.parametrize("kind", BOTH)
def test_unknown_fields_are_refused_where_that_is_wanted(kind: Kind) -> None:
    assert noted(kind, IgnoredFields(refuses=True), {"store": True, "user": "u"}).header == "store"
    with pytest.raises(BatonError) as refused:
        noted(kind, IgnoredFields(refuses=True), {"mood": "good"})
    assert (refused.value.code, refused.value.param) == (Code.UNSUPPORTED_PARAMETER, "mood")


def test_an_answer_that_is_sent_back_passes_and_its_extras_are_named_once() -> None:
    extras = {"id": "x", "weight": 1, "prefix": True, "provider_specific_fields": {"a": 1}}
    answer = ANSWER_SENT_BACK | extras | {"thinking_blocks": [], "reasoning": "hm"}
    ignored = ignored_of(Kind.CHAT, messages=[*CHAT["messages"], answer, answer])
    assert set(ignored.header.split(", ")) == {
        f"messages[].{name}"
        for name in (*extras, "thinking_blocks", "refusal", "annotations", "audio", "function_call")
    }


def test_a_fields_name_is_shown_in_part_and_without_what_could_harm_a_header() -> None:
    header = ignored_of(Kind.CHAT, **{"x" * 5000: 1, "a\r\nset-cookie: b": 1, "\u4f60": 1}).header
    assert len(header) < 200
    assert header.isascii()
    assert header.isprintable()
    many = ignored_of(Kind.CHAT, **{f"f{at}": 1 for at in range(1000)})
    assert len(many.header.split(", ")) == NAMES_MAX


def test_numbers_may_be_written_as_vllm_takes_them() -> None:
    body = BASE[Kind.CHAT] | {"max_tokens": 5.0, "temperature": "0.5", "stream": 1}
    request = parse(Kind.CHAT, json.dumps(body).encode(), IgnoredFields())
    assert (request.max_tokens, request.temperature, request.stream) == (5, 0.5, True)


@pytest.mark.parametrize("kind", BOTH)
def test_all_keys_of_a_bias_that_are_no_token_ids_are_named(kind: Kind) -> None:
    error = refusal(kind, logit_bias={"bad1": 1.0, "7": 1.0, "bad2": 2.0})
    assert (error.code, error.param) == (Code.INVALID_REQUEST, "logit_bias")
    assert "bad1" in error.message
    assert "bad2" in error.message
    assert "7" not in error.message


@pytest.mark.parametrize(
    ("seed", "kind"), [(2**63, "less_than_equal"), (-(2**63) - 1, "greater_than_equal")]
)
def test_a_bound_has_vllms_name(seed: int, kind: str) -> None:
    assert kind in refusal(Kind.CHAT, seed=seed).message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(["messages", "prompt", "stop", "logit_bias", "stream_options", "n"])


@given(st.sampled_from(Kind), st.dictionaries(NAMES, JSON))
def test_any_json_is_parsed_or_refused(kind: Kind, fields: dict[str, Any]) -> None:
    with contextlib.suppress(BatonError):
        parse(kind, json.dumps(BASE[kind] | fields).encode(), IgnoredFields())


@given(st.sampled_from(Kind), st.binary(max_size=60))
def test_any_bytes_are_refused(kind: Kind, body: bytes) -> None:
    with pytest.raises(BatonError):
        parse(kind, body, IgnoredFields())
