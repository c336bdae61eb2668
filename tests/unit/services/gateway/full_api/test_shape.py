"""The first thing that is wrong with a body's shape is told, with its field and bound."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import from_mapping
from common.errors import BatonError, Code
from services.gateway.api.routes import Route
from services.gateway.full_api.shape import CONVERSATION, PIECE_ELEMENTS, check_shape, pieces

LIMITS = {
    "messages_max": 4,
    "parts_max": 6,
    "tools_max": 2,
    "prompts_max": 3,
    "prompt_tokens_max": 5,
    "json_elements_max": 40,
    "json_depth_max": 10,
}
HELLO = {"role": "user", "content": "hello"}
PART = {"type": "text", "text": "hello"}


def check(route: Route, **fields: Any) -> None:
    check_shape(route, fields, from_mapping({"gateway": {"limits": LIMITS}}).gateway.limits)


def refusal(route: Route, **fields: Any) -> BatonError:
    with pytest.raises(BatonError) as refused:
        check(route, **fields)
    assert refused.value.code is Code.INVALID_REQUEST
    return refused.value


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (Route.CHAT, {"messages": [HELLO] * 4}),
        (Route.CHAT, {"messages": [{"role": "user", "content": [PART] * 6}]}),
        (Route.CHAT, {"messages": [{"role": "user", "content": ["plain text", PART]}]}),
        (Route.CHAT, {"messages": [HELLO], "tools": [{"type": "function"}] * 2}),
        (Route.CHAT, {"messages": [HELLO], "chat_template_kwargs": {"a": deep(8)}}),
        (Route.BATCH, {"messages": [[HELLO], [HELLO, HELLO]]}),
        (Route.RESPONSES, {"input": "text"}),
        (Route.RESPONSES, {"input": [{"type": "reasoning"}, HELLO]}),
        (Route.COMPLETION, {"prompt": "text"}),
        (Route.COMPLETION, {"prompt": ["a", "b", "c"]}),
        (Route.COMPLETION, {"prompt": [1, 2, 3, 4, 5]}),
        (Route.COMPLETION, {"prompt": [[1, 2], [3, 4, 5]]}),
        (Route.DETOKENIZE, {"tokens": [1] * 5}),
        (Route.TOKENIZE, {"prompt": "text"}),
        (Route.TOKENIZE, {"messages": [HELLO], "tools": None}),
    ],
)
def test_what_is_within_all_bounds_passes(route: Route, fields: dict[str, Any]) -> None:
    check(route, **fields)


@pytest.mark.parametrize("route", list(CONVERSATION))
@pytest.mark.parametrize("bad", [{}, [], "", 1, None, {"content": "x"}, {"role": 7}])
def test_what_cannot_be_a_message_is_refused_by_its_index(route: Route, bad: Any) -> None:
    messages = [HELLO, bad, bad]
    batch = route is Route.BATCH
    error = refusal(route, **{CONVERSATION[route]: [messages] if batch else messages})
    assert error.param == f"{CONVERSATION[route]}{'[0]' if batch else ''}[1]"


@pytest.mark.parametrize(
    ("route", "fields", "param", "key"),
    [
        (Route.CHAT, {"messages": [HELLO] * 5}, "messages", "messages_max"),
        (Route.RESPONSES, {"input": [HELLO] * 5}, "input", "messages_max"),
        (Route.BATCH, {"messages": [[HELLO]] * 4}, "messages", "prompts_max"),
        (
            Route.CHAT,
            {"messages": [{"role": "user", "content": [PART] * 4}] * 2},
            "messages[1].content",
            "parts_max",
        ),
        (Route.CHAT, {"messages": [HELLO], "tools": [{"type": "x"}] * 3}, "tools", "tools_max"),
        (Route.COMPLETION, {"prompt": ["a"] * 4}, "prompt", "prompts_max"),
        (Route.COMPLETION, {"prompt": [1] * 6}, "prompt", "prompt_tokens_max"),
        (Route.COMPLETION, {"prompt": [[1] * 3, [1] * 3]}, "prompt", "prompt_tokens_max"),
        (Route.DETOKENIZE, {"tokens": [1] * 6}, "tokens", "prompt_tokens_max"),
        (Route.CHAT, {"messages": [HELLO], "stop": ["x"] * 41}, "stop", "json_elements_max"),
        (Route.CHAT, {"metadata": {str(n): n for n in range(41)}}, "metadata", "json_elements_max"),
        (Route.CHAT, {"documents": [[[]] * 20] * 3}, "documents", "json_elements_max"),
        (Route.CHAT, {"logit_bias": deep(11)}, "logit_bias", "json_depth_max"),
        (Route.CHAT, {str(n): n for n in range(41)}, "body", "json_elements_max"),
    ],
)
def test_what_is_over_a_bound_is_refused_with_its_key(
    route: Route, fields: dict[str, Any], param: str, key: str
) -> None:
    error = refusal(route, **fields)
    assert error.param == param
    assert f"gateway.limits.{key}" in error.message


@pytest.mark.parametrize(
    ("choice", "refused"),
    [
        (None, False),
        ("auto", False),
        ("none", False),
        ({"type": "auto"}, False),
        ("required", True),
        ({"type": "any"}, True),
        ({"type": "function", "function": {"name": "f"}}, True),
        ([], True),
    ],
)
def test_tools_of_which_one_must_be_used_are_bounded_as_a_structure(
    choice: Any, refused: bool
) -> None:
    """Before the structure is made of them, which takes long."""
    tools = [{"type": "function", "description": "x" * (128 << 10)}]
    given = {"messages": [HELLO], "tools": tools, "tool_choice": choice}
    if not refused:
        check(Route.CHAT, **given)
        return
    error = refusal(Route.CHAT, **given)
    assert error.param == "tools"
    assert "gateway.limits.schema_bytes_max" in error.message
    check(Route.CHAT, **given | {"tools": [{"type": "function", "description": "x" * 1_000}]})


@pytest.mark.parametrize(
    "prompt", [[[], 1], [1, "a"], [{}], [None], [1.5], [True], [[1], [True]], [[]], {"a": 1}, 7]
)
def test_prompts_are_all_of_one_kind(prompt: Any) -> None:
    assert refusal(Route.COMPLETION, prompt=prompt).param in {"prompt", "prompt[0]", "prompt[1]"}


def test_each_part_of_a_message_says_what_it_is() -> None:
    bad = {"role": "user", "content": [PART, {}]}
    assert refusal(Route.CHAT, messages=[HELLO, bad]).param == "messages[1].content[1]"
    assert refusal(Route.CHAT, messages=[HELLO], tools=[{}]).param == "tools[0]"
    assert refusal(Route.CHAT, messages={}).param == "messages"
    assert refusal(Route.CHAT, messages=[HELLO], tools="x").param == "tools"


def test_pieces_hold_every_element_once_and_few_at_a_time() -> None:
    long = {"role": "user", "content": list(range(50))}
    messages = [{"n": n} for n in range(20)] + [long] + [{"n": 20}]
    found = list(pieces(messages))
    assert max(map(len, found)) <= PIECE_ELEMENTS
    seen = [pair for piece in found for pair in piece]
    assert [at for at, message in seen if "n" in message] == [*range(20), 21]
    parts = [message for at, message in seen if at == 20]
    assert max(len(part["content"]) for part in parts) == PIECE_ELEMENTS
    assert [element for part in parts for element in part["content"]] == long["content"]


def test_a_short_conversation_is_one_piece() -> None:
    assert list(pieces([HELLO, HELLO])) == [[(0, HELLO), (1, HELLO)]]
    assert list(pieces([])) == []
