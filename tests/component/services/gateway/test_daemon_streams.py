"""Answers over the real sockets: streamed, whole, stopped, interrupted."""

from __future__ import annotations

import contextlib
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from openai import APIError, AsyncOpenAI, BadRequestError

from common.messages import Abort, Cancel, Delta, Failed, Refused, Role, Submit, Tokens
from common.net.wire import unpack_ids
from tests.component.services.gateway.rig import (
    FakeWorker,
    MakeRig,
    Rig,
    all_events,
    delta,
    next_event,
    place_on,
)

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def frail(make_rig: MakeRig) -> Rig:
    """A gateway that does not move streams of lost workers."""
    return await make_rig(recovery=False)


async def started_chat(
    rig: Rig, worker: FakeWorker, **more: Any
) -> tuple[Submit, aiohttp.ClientResponse]:
    """A streaming chat that has received its first token."""
    posted = rig.ask("/v1/chat/completions", model="m", messages=HI, stream=True, **more)
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "a"))
    response = await posted.response()
    assert (await next_event(response))["choices"][0]["delta"]["role"] == "assistant"
    assert (await next_event(response))["choices"][0]["delta"]["content"] == "a"
    return submit, response


async def test_streams_a_chat_with_usage(rig: Rig) -> None:
    worker = await rig.worker()
    options = {"include_usage": True}
    submit, response = await started_chat(rig, worker, stream_options=options, max_tokens=4)
    assert submit.max_tokens == 4
    prompt = unpack_ids(rig.router.bodies[submit.request_id].prompt_ids)
    assert prompt == [256, 260, *b"hi", 257, 261]
    assert response.headers["Content-Type"].startswith("text/event-stream")
    worker.send(delta(submit, 1, "é"))
    worker.send(delta(submit, 3, "!", finish_reason="length"))
    text, last, usage, done = await all_events(response)
    assert text["choices"][0]["delta"]["content"] == "é"
    assert last["choices"][0] == {
        "index": 0,
        "delta": {"content": "!"},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert usage["usage"]["prompt_tokens"] == len(prompt)
    assert done == "[DONE]"
    await rig.gone()
    assert Cancel not in {type(message) for message in rig.router.drained()}


async def test_answers_a_completion_whole(rig: Rig) -> None:
    worker = await rig.worker()
    posted = rig.ask("/v1/completions", model="m", prompt="ab", max_tokens=3)
    submit = await rig.router.next(Submit)
    assert submit.prompt_tokens == 2
    worker.send(delta(submit, 0, "x", cached_tokens=1))
    worker.send(delta(submit, 1, "yz", finish_reason="length"))
    response = await posted.response()
    body = await response.json()
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "xyz"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert body["usage"]["total_tokens"] == 5


async def test_a_stop_string_ends_the_stream_and_aborts_the_worker(rig: Rig) -> None:
    worker = await rig.worker()
    submit, response = await started_chat(rig, worker, stop=["ST"])
    worker.send(delta(submit, 1, "bS"))
    worker.send(delta(submit, 3, "Tmore"))
    worker.send(delta(submit, 8, "late"))
    events = await all_events(response)
    texts = [event["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert texts == ["b", ""]
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-2]["choices"][0]["stop_reason"] == "ST"
    assert (await worker.next(Abort)).request_id == submit.request_id
    assert (await rig.router.next(Cancel)).request_id == submit.request_id


async def test_the_end_of_sequence_token_is_counted_and_not_shown(rig: Rig) -> None:
    worker = await rig.worker()
    posted = rig.ask("/v1/chat/completions", model="m", messages=HI)
    submit = await rig.router.next(Submit)
    end = Delta(submit.request_id, 1, 0, [*b"ok", 257], finish_reason="stop", stop_token=257)
    worker.send(Tokens(deltas=[end]))
    response = await posted.response()
    body = await response.json()
    assert body["choices"][0]["message"]["content"] == "ok"
    assert body["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_aborts_and_cancels(rig: Rig, stream: bool) -> None:
    worker = await rig.worker()
    if stream:
        submit, response = await started_chat(rig, worker)
        response.close()
    else:
        posted = rig.ask("/v1/chat/completions", model="m", messages=HI)
        submit = await rig.router.next(Submit)
        while not rig.gateway.core.busy_workers():
            await rig.turn()
        posted.leave()
    assert (await worker.next(Abort)).request_id == submit.request_id
    assert (await rig.router.next(Cancel)).request_id == submit.request_id
    await rig.gone()


@pytest.mark.parametrize("method", ["write_eof", "prepare"])
async def test_a_client_that_leaves_while_it_is_answered_is_no_error(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """`write_eof`: after [DONE]; `prepare`: before the headers."""

    async def left(*_: Any) -> None:
        raise ConnectionResetError

    worker = await rig.worker()
    with monkeypatch.context() as patched:
        patched.setattr(web.StreamResponse, method, left)
        posted = rig.ask("/v1/chat/completions", model="m", messages=HI, stream=True)
        submit = await rig.router.next(Submit)
        worker.send(delta(submit, 0, "a", finish_reason="length"))
        with contextlib.suppress(aiohttp.ClientError):
            await (await posted.response()).read()
    await rig.gone()
    await rig.turn()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_dead_worker_gives_an_error_event_and_no_done(frail: Rig) -> None:
    worker = await frail.worker()
    _, response = await started_chat(frail, worker)
    worker.close()
    (event,) = await all_events(response)
    assert event["error"]["code"] == "stream_interrupted"
    assert "d0" in event["error"]["message"]


async def test_a_dead_workers_stream_goes_on_at_another(rig: Rig) -> None:
    worker = await rig.worker()
    submit, response = await started_chat(
        rig, worker, max_tokens=4, stream_options={"include_usage": True}
    )
    rig.router.answer = place_on("d1")
    worker.close()
    again = await rig.router.next(Submit)
    assert (again.request_id, again.attempt) == (submit.request_id, 2)
    body = rig.router.bodies[submit.request_id]
    assert unpack_ids(body.prompt_ids) == [256, 260, *b"hi", 257, 261, *b"a"]
    other = await rig.worker("d1")
    other.send(delta(again, 0, "b"))
    other.send(delta(again, 1, "cd", finish_reason="length"))
    *_, usage, done = events = await all_events(response)
    text = "".join(e["choices"][0]["delta"]["content"] for e in events[:-2])
    assert text == "bcd"
    assert usage["usage"]["prompt_tokens"] == submit.prompt_tokens
    assert usage["usage"]["completion_tokens"] == 4
    assert done == "[DONE]"


async def test_a_dead_worker_gives_500_before_the_first_byte(frail: Rig) -> None:
    worker = await frail.worker()
    posted = frail.ask("/v1/chat/completions", model="m", messages=HI)
    await frail.router.next(Submit)
    worker.close()
    response = await posted.response()
    assert response.status == 500
    assert (await response.json())["error"]["code"] == "worker_lost"


async def test_a_failed_placement_is_told_as_an_error(frail: Rig) -> None:
    await frail.ready()
    posted = frail.ask("/v1/chat/completions", model="m", messages=HI, stream=True)
    submit = await frail.router.next(Submit)
    frail.router.send(
        Failed(request_id=submit.request_id, attempt=1, code="worker_lost", message="d0 is dead")
    )
    response = await posted.response()
    assert response.status == 500
    assert (await response.json())["error"]["message"] == "d0 is dead"


async def test_a_restarted_workers_hello_ends_what_the_old_connection_carried(frail: Rig) -> None:
    worker = await frail.worker()
    _, response = await started_chat(frail, worker)
    await frail.worker()
    (event,) = await all_events(response)
    assert event["error"]["code"] == "stream_interrupted"


async def test_missing_tokens_break_the_stream_explicitly(frail: Rig) -> None:
    worker = await frail.worker()
    submit, response = await started_chat(frail, worker)
    worker.send(delta(submit, 5, "z"))
    (event,) = await all_events(response)
    assert event["error"]["code"] == "stream_interrupted"
    assert (await worker.next(Abort)).request_id == submit.request_id


async def test_a_slow_reader_is_cut_and_aborted(make_rig: MakeRig) -> None:
    rig = await make_rig(max_model_len=1_000_000_000, slow_client_bytes_max=65_536)
    await _flood(rig)


async def test_a_reader_that_stops_for_too_long_is_cut_and_aborted(make_rig: MakeRig) -> None:
    rig = await make_rig(
        max_model_len=1_000_000_000, slow_client_bytes_max=1 << 30, slow_client_ms_max=1
    )
    await _flood(rig)


async def _flood(rig: Rig) -> None:
    """Sends to a client that never reads until the gateway has had enough."""
    worker = await rig.worker()
    posted = rig.ask("/v1/chat/completions", model="m", messages=HI, stream=True)
    submit = await rig.router.next(Submit)
    size = 8_192
    for step in range(5_000):
        worker.send(delta(submit, step * size, "a" * size))
        await rig.turn()
        if not rig.gateway.core.active and step:
            break
    response = await posted.response()
    assert (await worker.next(Abort)).reason.startswith("slow client")
    assert (await rig.router.next(Cancel)).request_id == submit.request_id
    with pytest.raises(aiohttp.ClientError):
        await response.read()


async def test_bad_frames_are_dropped_and_harm_nobody(rig: Rig) -> None:
    worker = await rig.worker()
    submit, response = await started_chat(rig, worker)
    worker.send_frames(b"\xc1 not msgpack")
    worker.send_frames(b"two", b"frames")
    worker.send(Tokens(deltas=[Delta(submit.request_id, 7, 1, [65])]))
    worker.send(Tokens(deltas=[Delta(submit.request_id, 1, 0, [65])]))
    rig.router.send_frames(b"\x81\xa4type\xa5Bogus")
    worker.send(delta(submit, 1, "b", finish_reason="stop", stop_token=-1))
    events = await all_events(response)
    assert events[-1] == "[DONE]"
    assert rig.gateway.core.counters.stale == 2


async def test_tokens_before_hello_are_nothing(frail: Rig) -> None:
    rude = await frail.stranger(greets=False)
    posted = frail.ask("/v1/completions", model="m", prompt="p", max_tokens=1)
    submit = await frail.router.next(Submit)
    rude.send(delta(submit, 0, "x", finish_reason="length"))
    while not frail.gateway.frames_dropped:
        await frail.turn()
    assert frail.gateway.core.active == 1
    worker = await frail.worker("d1")
    frail.router.send(
        Failed(request_id=submit.request_id, attempt=1, code="worker_lost", message="lost")
    )
    assert (await posted.response()).status == 500
    assert worker.welcomed.is_set()


@pytest.mark.parametrize("fault", [{"wire_version": 99}, {"role": Role.PREFILL}])
async def test_a_hello_that_is_not_good_is_refused(rig: Rig, fault: dict[str, Any]) -> None:
    stranger = await rig.stranger(**fault)
    assert (await stranger.next(Refused)).code == "wire_mismatch"


async def test_another_workers_tokens_are_not_taken(rig: Rig) -> None:
    worker, thief = await rig.worker(), await rig.worker("d1")
    submit, response = await started_chat(rig, worker)
    thief.send(delta(submit, 1, "EVIL"))
    while not rig.gateway.core.counters.stale:
        await rig.turn()
    worker.send(delta(submit, 1, "b", finish_reason="length"))
    events = await all_events(response)
    assert events[0]["choices"][0]["delta"]["content"] == "b"


async def test_the_openai_client_works(rig: Rig) -> None:
    worker = await rig.worker()
    client = AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0)
    texts: list[str] = []

    async def converse() -> None:
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            texts.extend(choice.delta.content or "" for choice in chunk.choices)
        whole = await client.completions.create(model="m", prompt="p", max_tokens=1)
        texts.append(whole.choices[0].text)

    talk = rig.tasks.start("client", converse(), ends=True)
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "he"))
    worker.send(delta(submit, 2, "llo", finish_reason="stop", stop_token=-1))
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "x", finish_reason="length"))
    await talk
    assert "".join(texts) == "hell" + "x"
    with pytest.raises(BadRequestError) as refused:
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], n=2
        )
    assert refused.value.param == "n"
    await client.close()


async def test_the_openai_client_raises_on_an_interrupted_stream(frail: Rig) -> None:
    worker = await frail.worker()
    client = AsyncOpenAI(base_url=f"{frail.url}/v1", api_key="none", max_retries=0)

    async def converse() -> None:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        await anext(stream)
        await anext(stream)
        worker.close()
        with pytest.raises(APIError):
            await anext(stream)

    talk = frail.tasks.start("client", converse(), ends=True)
    submit = await frail.router.next(Submit)
    worker.send(delta(submit, 0, "he"))
    await talk
    await client.close()
