"""What is read of and written into the bodies of responses, byte for byte where nothing changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from common.errors import BatonError, Code
from services.gateway.responses import conversation
from services.gateway.responses.conversation import Turn


def turn(**body: Any) -> Turn:
    found = conversation.read(json.dumps(body).encode())
    assert found is not None
    return found


def loaded(items: list[Raw] | None) -> Any:
    return None if items is None else [json.loads(bytes(item)) for item in items]


def message(*texts: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "logprobs": [1]} for text in texts]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": parts} | more


def test_store_is_the_default_and_null_says_nothing() -> None:
    assert turn(input="x").is_stored
    assert turn(store=None).is_stored
    assert turn(store=True).is_stored
    assert not turn(store=False).is_stored
    empty = turn(background=None, previous_response_id=None, stream=None)
    assert (empty.background, empty.previous, empty.stream) == (False, "", False)


@pytest.mark.parametrize("body", [b"", b"[]", b"3", b"{", b"\xff", b'{"store": tru}'])
def test_what_is_no_object_is_left_to_others(body: bytes) -> None:
    assert conversation.read(body) is None


def test_an_input_is_items() -> None:
    text = {"type": "message", "role": "user", "content": 'a "quoted" é'}
    assert loaded(conversation.said(turn(input='a "quoted" é'))) == [text]
    assert loaded(conversation.said(turn(input=[text, {"a": 1}]))) == [text, {"a": 1}]
    nothing: tuple[Any, ...] = (3, {}, None)
    for none in nothing:
        assert conversation.said(turn(input=none)) is None
    assert conversation.said(turn()) is None


def test_the_body_that_is_answered_has_all_but_what_is_ours() -> None:
    asked = turn(
        model="m", input="x", store=True, background=False, previous_response_id="r", top_p=1
    )
    assert json.loads(conversation.request_of(asked, None)) == {
        "model": "m",
        "input": "x",
        "top_p": 1,
    }
    body = conversation.request_of(asked, [Raw(b'{ "odd":  1e3 }')])
    assert b'"input":[{ "odd":  1e3 }]' in body, "items are copied as they are"


def test_a_conversation_has_what_was_answered_without_its_reasoning() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    answer = json.dumps({"output": [reasoning, message("one", "two"), message()]}).encode()
    items = conversation.after(b'[{"role":"user","content":"x"}]', answer)
    first, *texts = loaded(items)
    assert first == {"role": "user", "content": "x"}
    assert [item["content"] for item in texts] == [
        [{"type": "output_text", "text": text, "annotations": []}] for text in ("one", "two")
    ]
    assert {item["status"] for item in texts} == {"completed"}


def test_reasoning_stays_before_a_call() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    answer = json.dumps({"output": [reasoning, call]}).encode()
    assert loaded(conversation.after(b"[]", answer)) == [reasoning, call]


def test_a_refusal_is_no_text() -> None:
    refusal = message() | {"content": [{"type": "refusal", "refusal": "no"}]}
    assert conversation.after(b"[]", json.dumps({"output": [refusal]}).encode()) == []


def test_a_queued_response_shows_what_was_asked_for() -> None:
    asked = turn(input="x", background=True, tools=[{"a": 1}], metadata={"b": "c"}, model="given")
    shown = json.loads(conversation.queued(asked, "resp_1", "m", 7))
    expected = {
        "id": "resp_1",
        "object": "response",
        "created_at": 7,
        "status": "queued",
        "model": "given",
        "output": [],
        "tools": [{"a": 1}],
        "metadata": {"b": "c"},
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "background": True,
        "store": True,
        "previous_response_id": None,
    }
    assert expected.items() <= shown.items()
    unnamed = json.loads(conversation.queued(turn(background=True), "resp_1", "m", 7))
    assert unnamed["model"] == "m"


def test_an_answer_keeps_what_was_shown_before_it() -> None:
    asked = turn(input="x", background=True, previous_response_id="resp_0")
    shown = conversation.queued(asked, "resp_1", "m", 7)
    answer = b'{"id": "resp_2", "created_at": 9, "status": "incomplete", "output": [1.50]}'
    done = conversation.finished(shown, answer)
    assert b"[1.50]" in done
    assert json.loads(done) == {
        "id": "resp_1",
        "created_at": 7,
        "status": "incomplete",
        "output": [1.5],
        "background": True,
        "store": True,
        "previous_response_id": "resp_0",
    }


@pytest.mark.parametrize(
    ("code", "says"), [(Code.INVALID_REQUEST, "invalid_prompt"), (Code.INTERNAL, "server_error")]
)
def test_an_error_is_in_openais_words(code: Code, says: str) -> None:
    failed = json.loads(conversation.failed(b'{"id": "r"}', BatonError(code, "why")))
    assert failed == {"id": "r", "status": "failed", "error": {"code": says, "message": "why"}}


def test_a_response_in_an_event_is_replaced() -> None:
    event = (
        b'event: response.completed\ndata: {"type":"t","sequence_number":3,"response":{"id":1}}\n\n'
    )
    assert conversation.response_in(event) == b'{"id":1}'
    changed = conversation.with_response(event, b'{"id":2}')
    assert changed == event.replace(b'{"id":1}', b'{"id":2}')


def test_listed_items_have_ids_that_stay() -> None:
    call = {"type": "function_call", "id": "fc_given", "name": "f"}
    output = {"type": "function_call_output", "output": "x"}
    items = json.dumps([{"role": "user", "content": "hi"}, call, output, message("a")]).encode()
    listed = conversation.listed(items, "resp_9")
    assert [item["id"] for item in listed] == ["msg_9_0", "fc_given", "fco_9_2", "msg_1"]
    assert [item["type"] for item in listed] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert listed[0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert listed == conversation.listed(items, "resp_9")
    said = conversation.listed(b'[{"role":"assistant","content":"yes"}]', "resp_9")
    assert said[0]["content"] == [{"type": "output_text", "text": "yes"}]
