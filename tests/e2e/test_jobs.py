"""What the ledger holds, on real vLLM, through the official client. Batches: each line's answer is
that of the same request, and lines with a shared beginning find it in the prefix cache. Responses:
a conversation goes on as if the client had sent all of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.rigs.batches import chat_line, client, entries, jsonl, over, started
from tests.rigs.fleet import Fleet, fleet
from tests.rigs.responses import answered, asked, deltas, listed, resumed, streamed

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    env = {"BATON_GATEWAY__JOBS__PATH": str(tmp_path_factory.mktemp("jobs") / "jobs")}
    with fleet("--prefill", "1", "--decode", "1", env=env) as up:
        yield up.wait_ready()


def said(answer: dict[str, Any]) -> Any:
    """Text, and the tokens of its logprobs."""
    choice = answer["choices"][0]
    logprobs = (choice["logprobs"] or {}).get("content") or []
    return choice["message"]["content"], [position["token"] for position in logprobs]


def test_a_batch_says_what_the_same_requests_say(running: Fleet, tmp_path: Path) -> None:
    beginnings = ["".join(random.Random(n).choices("eight words ", k=600)) for n in range(3)]
    lines = [
        chat_line(
            number,
            messages=[{"role": "user", "content": f"{beginnings[number % 3]} and {number}?"}],
            max_tokens=12,
            temperature=0,
            **({"logprobs": True} if number % 4 == 0 else {}),
        )
        for number in range(12)
    ]
    lines.append(chat_line(12, tools=[TOOL], tool_choice="nothing"))
    with client(running) as api:
        done = over(api, started(api, jsonl(lines)).id, 200)
        assert (done.request_counts.completed, done.request_counts.failed) == (12, 1)
        assert done.usage.input_tokens_details.cached_tokens > done.usage.input_tokens / 3
        for line, entry in zip(lines, entries(api, done.output_file_id), strict=False):
            assert entry["custom_id"] == line["custom_id"]
            answer = api.chat.completions.create(**line["body"])
            assert said(entry["response"]["body"]) == said(answer.model_dump())
        (refused,) = entries(api, done.error_file_id)
        with pytest.raises(openai.BadRequestError):
            api.chat.completions.create(**lines[12]["body"])
        assert refused["response"]["status_code"] == 400


def test_a_stored_response_is_read_listed_and_deleted(running: Fleet) -> None:
    with client(running) as api:
        made = asked(api, input="hello", metadata={"for": "the test"})
        assert made.output_text
        assert api.responses.retrieve(made.id).model_dump() == made.model_dump()
        assert listed(api, made.id) == ["hello"]
        api.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            api.responses.retrieve(made.id)
        unkept = asked(api, input="hello", store=False)
        with pytest.raises(openai.NotFoundError):
            api.responses.retrieve(unkept.id)


@pytest.mark.parametrize("answer", [asked, streamed])
def test_a_conversation_goes_on_as_if_all_of_it_had_been_sent(
    running: Fleet, answer: Callable[..., Any]
) -> None:
    with client(running) as api:
        first = answer(api, input=[{"role": "user", "content": "one"}], instructions="be brief")
        second = answer(api, input="two", previous_response_id=first.id)
        about = {"input": "three", "instructions": "be kind"}
        third = answer(api, **about, previous_response_id=second.id)
        assert third.previous_response_id == second.id
        assert api.responses.retrieve(third.id).output_text == third.output_text
        talk = [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": second.output_text},
            {"role": "user", "content": "three"},
        ]
        sent = asked(api, input=talk, instructions="be kind", store=False)
        assert third.output_text == sent.output_text
        assert third.usage.input_tokens == sent.usage.input_tokens
        assert listed(api, third.id) == [message["content"] for message in talk]


def test_the_output_of_a_function_goes_to_the_stored_call(running: Fleet) -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    about: dict[str, Any] = {"tools": [tool], "max_output_tokens": 64}
    with client(running) as api:
        called = asked(api, **about, input="hi", tool_choice="required")
        (call, *_) = [item for item in called.output if item.type == "function_call"]
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "seen"}
        then = asked(api, **about, input=[output], previous_response_id=called.id)
        sent = asked(api, **about, input=[{"role": "user", "content": "hi"}, plain(call), output])
        assert then.output_text == sent.output_text
        assert then.usage.input_tokens == sent.usage.input_tokens


def plain(call: Any) -> dict[str, Any]:
    """As a client would send it."""
    names = ("type", "call_id", "name", "arguments")
    return {name: getattr(call, name) for name in names}


def test_a_background_stream_is_left_and_gone_on_with(running: Fleet) -> None:
    with client(running) as api:
        stream = asked(api, input="hello", background=True, stream=True)
        seen = [next(stream) for _ in range(5)]
        stream.close()
        made = seen[0].response
        told = seen + list(resumed(api, made.id, starting_after=4))
        assert [event.sequence_number for event in told] == list(range(len(told)))
        assert [event.type for event in told[:4]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
            "response.output_item.added",
        ]
        assert list(resumed(api, made.id)) == told
        assert told[-1].response == api.responses.retrieve(made.id)
        assert (told[-1].type, made.status) == ("response.incomplete", "queued")
        text = asked(api, input="hello").output_text
        assert deltas(told) == told[-1].response.output_text == text
        with api.responses.stream(response_id=made.id, starting_after=4) as helped:
            assert [event.type for event in helped] == [event.type for event in told[5:]]


def test_a_background_response_is_asked_for_until_it_is_there(running: Fleet) -> None:
    with client(running) as api:
        made = asked(api, input="hello", background=True)
        assert (made.status, made.output, made.background) == ("queued", [], True)
        done = answered(api, made.id)
        assert (done.status, done.id) == ("incomplete", made.id), "it was cut at its length"
        assert done.output_text == asked(api, input="hello").output_text
        then = asked(api, input="more", previous_response_id=done.id)
        assert then.usage.input_tokens > done.usage.input_tokens
        wrong = asked(api, input="hello", background=True, tool_choice="required")
        assert answered(api, wrong.id).error.code == "invalid_prompt"
