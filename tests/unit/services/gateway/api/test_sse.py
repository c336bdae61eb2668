"""What a client reads from the event stream, whatever the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BatonError, Code
from common.messages import Sampling
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.sse import SseAnswer
from services.gateway.streams.answer import Ending, Usage


class Wire:
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.refused: BatonError | None = None
        self.ends = 0

    def write(self, payload: bytes) -> None:
        self.writes.append(payload)

    def refuse(self, error: BatonError) -> None:
        self.refused = error

    def end(self) -> None:
        self.ends += 1

    def events(self) -> list[Any]:
        """By the standard's rules: events end with an empty line, here one data line each."""
        blocks = b"".join(self.writes).decode().split("\n\n")
        assert blocks.pop() == ""
        for block in blocks:
            assert block.startswith("data: ")
            assert "\n" not in block
            assert "\r" not in block
        data = [block.removeprefix("data: ") for block in blocks]
        return [one if one == "[DONE]" else json.loads(one) for one in data]


def spec(kind: Kind = Kind.CHAT, **more: Any) -> RequestSpec:
    return RequestSpec(kind, "r1", 'm"\n', 123, [5, 6], Sampling(max_tokens=9), stream=True, **more)


ENDING = Ending("length", None, Usage(2, 3, 1, 4))


@given(st.sampled_from(Kind), st.lists(st.text(), max_size=6), st.booleans(), st.booleans())
def test_any_text_arrives_whole(
    kind: Kind, texts: list[str], include_usage: bool, return_token_ids: bool
) -> None:
    wire = Wire()
    asked = spec(kind, include_usage=include_usage, return_token_ids=return_token_ids)
    answer = SseAnswer(asked, wire, lambda: 0.0)
    for text in texts:
        answer.text(text, [1])
    answer.finish("end", [2], ENDING)
    events = wire.events()
    assert events[-1] == "[DONE]"
    assert len(wire.writes) == len(texts) + 1
    chunks = [event for event in events[:-1] if event["choices"]]
    read = [
        chunk["choices"][0]["delta"]["content"]
        if kind is Kind.CHAT
        else chunk["choices"][0]["text"]
        for chunk in chunks
    ]
    assert "".join(read) == "".join([*texts, "end"])
    for chunk in chunks:
        assert chunk["id"] == f"{kind.value}-r1"
        assert (chunk["created"], chunk["model"]) == (123, 'm"\n')
        assert ("usage" in chunk) == include_usage
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    if include_usage:
        assert events[-2]["choices"] == []
        created = {"created_cache_tokens": 4} if kind is Kind.CHAT else {}
        details = events[-2]["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": 1} | created, "vLLM has the other in chats only"
    if return_token_ids:
        ids = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
        assert ids == [1] * len(texts) + [2]
        first = chunks[0] if kind is Kind.CHAT else chunks[0]["choices"][0]
        assert first["prompt_token_ids"] == [5, 6]


def test_the_first_chat_chunk_is_the_role() -> None:
    wire = Wire()
    answer = SseAnswer(spec(), wire, lambda: 0.0)
    answer.text("a", [1])
    answer.finish("", [2], ENDING)
    first, second, last, _ = wire.events()
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second["choices"][0]["delta"] == {"content": "a"}
    assert last["choices"][0]["stop_reason"] is None
    assert wire.ends == 1


def test_continuous_usage_counts_up() -> None:
    wire = Wire()
    answer = SseAnswer(spec(include_usage=True, continuous_usage=True), wire, lambda: 0.0)
    answer.text("a", [1])
    answer.text("b", [1, 1])
    answer.finish("c", [1], Ending("stop", "x", Usage(2, 4, 0)))
    counts = [event["usage"]["completion_tokens"] for event in wire.events()[:-1]]
    assert counts == [0, 1, 3, 4, 4]


@pytest.mark.parametrize("code", [Code.WORKER_LOST, Code.DRAINING])
def test_a_failure_after_the_first_byte_is_an_event_without_done(code: Code) -> None:
    wire = Wire()
    answer = SseAnswer(spec(), wire, lambda: 0.0)
    answer.text("a", [1])
    answer.fail(BatonError(code, "gone"))
    error = wire.events()[-1]["error"]
    assert (error["code"], error["message"]) == ("stream_interrupted", "gone")
    assert wire.ends == 1


def test_a_failure_before_the_first_byte_is_a_refusal() -> None:
    wire = Wire()
    error = BatonError(Code.QUEUE_FULL, "full")
    SseAnswer(spec(), wire, lambda: 0.0).fail(error)
    assert wire.refused is error
    assert wire.writes == []
