"""A recorded request keeps its shape and nothing that is the client's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.recorder import TEXT, shape


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"role": "user", "content": "two words"}, {"role": "user", "content": TEXT}),
        ({"type": "text", "text": "word"}, {"type": "text", "text": TEXT}),
        ({"id": "call_0123456789abcdef"}, {"id": "id-1"}),
        ({"id": "msg_2d701056-e176-5bf1-9e6e-8aae41cf1e41"}, {"id": "id-1"}),
        ({"cwd": "/home/someone"}, {"cwd": TEXT}),
        ({"arguments": '{"city": "Rome"}'}, {"arguments": '{"city": "Rome"}'}),
        ({"n": 2, "stream": True, "stop": None}, {"n": 2, "stream": True, "stop": None}),
        ({"tools": [1, 2, 3, 4]}, {"tools": [1, 2, 3]}),
        ({"messages": [1, 2, 3, 4]}, {"messages": [1, 2, 3, 4]}),
    ],
)
def test_shapes(value: Any, kept: Any) -> None:
    assert shape(value) == kept


def test_an_agents_tools_are_kept_without_their_parameters() -> None:
    theirs = {"type": "object", "properties": {"command": {}}, "required": ["command"]}
    assert shape({"parameters": theirs}) == {
        "parameters": {"type": "object", "properties": {}, "required": []}
    }
    ours = {"type": "object", "properties": {"city": {"type": "string"}}}
    assert shape({"parameters": ours}) == {"parameters": ours}
