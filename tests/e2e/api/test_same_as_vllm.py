"""Every feature of the API, streaming and not, asked of Baton and of vLLM's own server on the same
model, and compared field by field. What may differ is in `compare.ALLOWED`, each with its reason.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.api.cases import (
    CHATS,
    COMPLETIONS,
    HELLO,
    MESSAGES,
    MODEL,
    OTHERS,
    RESPONSES,
    WRONG,
)
from tests.e2e.api.compare import differences, events, gathered, typed
from tests.e2e.api.conftest import Both

pytestmark = pytest.mark.timeout(600)

STREAMS = [False, True]


def chunked(both: Both, path: str, body: dict[str, Any], *, stream: bool) -> list[str]:
    """How the answers to a chat or a completion differ."""
    if not stream:
        ours, theirs = both.ask(path, body)
        assert (ours.status_code, theirs.status_code) == (200, 200), ours.text + theirs.text
        return differences(ours.json(), theirs.json())
    options = {"stream": True, "stream_options": {"include_usage": True}}
    ours, theirs = both.ask(path, body | options)
    if "prompt_logprobs" in body:
        assert (ours.status_code, theirs.status_code) == (400, 400), "vLLM does not stream them"
        return []
    assert (ours.status_code, theirs.status_code) == (200, 200), ours.text + theirs.text
    return differences(gathered(events(ours.text)), gathered(events(theirs.text)))


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("case", CHATS)
def test_chats(both: Both, case: str, stream: bool) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0} | CHATS[case]
    assert chunked(both, "/v1/chat/completions", body, stream=stream) == []


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("case", COMPLETIONS)
def test_completions(both: Both, case: str, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 12, "temperature": 0}
    assert chunked(both, "/v1/completions", body | COMPLETIONS[case], stream=stream) == []


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("case", RESPONSES)
def test_responses(both: Both, case: str, stream: bool) -> None:
    body = {"model": MODEL, "input": "hello", "max_output_tokens": 12, "temperature": 0}
    ours, theirs = both.ask("/v1/responses", body | RESPONSES[case] | {"stream": stream})
    assert (ours.status_code, theirs.status_code) == (200, 200), ours.text + theirs.text
    if stream:
        assert differences(typed(events(ours.text)), typed(events(theirs.text))) == []
    else:
        assert differences(ours.json(), theirs.json()) == []


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("case", MESSAGES)
def test_messages(both: Both, case: str, stream: bool) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0}
    ours, theirs = both.ask("/v1/messages", body | MESSAGES[case] | {"stream": stream})
    assert (ours.status_code, theirs.status_code) == (200, 200), ours.text + theirs.text
    if stream:
        told = [
            [event for event in events(side.text) if event != "[DONE]"] for side in (ours, theirs)
        ]
        assert differences(typed(told[0]), typed(told[1])) == []
    else:
        assert differences(ours.json(), theirs.json()) == []


@pytest.mark.parametrize("case", OTHERS)
def test_the_rest(both: Both, case: str) -> None:
    path, body = OTHERS[case]
    ours, theirs = both.ask(path, {"model": MODEL} | body)
    assert (ours.status_code, theirs.status_code) == (200, 200), ours.text + theirs.text
    assert differences(ours.json(), theirs.json()) == []


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_so_for_both(both: Both, case: str) -> None:
    path, body = WRONG[case]
    ours, theirs = both.ask(path, {"model": MODEL} | body)
    assert ours.status_code == theirs.status_code, ours.text + theirs.text
    assert ours.status_code in (400, 404)
    assert ours.json()["error"]["message"]
