"""`usage` equals that of vLLM's own server: for a prompt that was never seen, which P computes and
hands over, for the same prompt again, and for one that goes on where an earlier one ended.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.api.cases import MODEL
from tests.e2e.api.compare import differences, events
from tests.e2e.api.conftest import Both, Stack

pytestmark = pytest.mark.timeout(600)

STREAMS = [False, True]
#: Some blocks of 128 tokens, one token for each letter.
LONG = "the sea is wide and the boat is small; " * 20


def body_of(path: str, text: str) -> dict[str, Any]:
    chat = [{"role": "user", "content": text}]
    match path:
        case "/v1/completions":
            return {"prompt": text, "max_tokens": 4}
        case "/v1/responses":
            return {"input": text, "max_output_tokens": 4}
        case _:
            return {"messages": chat, "max_tokens": 4}


def usages(text: str) -> list[Any]:
    """All that an answer says of usage: the only one of a JSON body, or those of its events."""
    if text.startswith("{"):
        return [json.loads(text)["usage"]]
    told = [event for event in events(text) if event != "[DONE]"]
    inner = [event.get("response") or event.get("message") or event for event in told]
    return [each["usage"] for each in inner if each.get("usage")]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
)
def test_usage_is_that_of_a_plain_server(stack: Stack, both: Both, path: str, stream: bool) -> None:
    stack.fleet.ctl("policy", "--remote-prefill", "always")
    more: dict[str, Any] = {"model": MODEL, "temperature": 0, "stream": stream}
    if stream and path in ("/v1/chat/completions", "/v1/completions"):
        more["stream_options"] = {"include_usage": True}
    cold = f"{path} {stream} {LONG}"
    longer = cold + "what does the wind say to the sail? " * 8
    for text in (cold, cold, longer):
        ours, theirs = both.ask(path, body_of(path, text) | more)
        assert (ours.status_code, theirs.status_code) == (200, 200), ours.text + theirs.text
        found = usages(ours.text)
        assert differences(found, usages(theirs.text)) == []
        assert found
