"""Streams that outlive their connection, over the real sockets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import msgspec
import pytest
from openai import AsyncOpenAI

from common.messages import Abandoned, Abort, Cancel, Submit
from common.security.api_keys import KeyRecord, edited, new_key
from tests.component.services.gateway.rig import (
    BackgroundRequest,
    FakeWorker,
    MakeRig,
    Rig,
    delta,
    refuse_with,
)
from tests.rigs.peers import WAIT_SECONDS

ON = {"x-resumable": "true"}
ASK = {"model": "m", "prompt": "ab", "stream": True, "max_tokens": 20}


async def begun(
    rig: Rig, worker: FakeWorker, **headers: str
) -> tuple[Submit, aiohttp.ClientResponse]:
    """A resumable stream that said `a` and then `b`."""
    posted = BackgroundRequest(
        rig.tasks, rig.http.post(f"{rig.url}/v1/completions", json=ASK, headers=ON | headers)
    )
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "a"))
    response = await posted.response()
    assert await read_event(response) == (1, "a")
    worker.send(delta(submit, 1, "b"))
    assert await read_event(response) == (2, "b")
    return submit, response


async def read_event(response: aiohttp.ClientResponse) -> tuple[int, str]:
    """Number and text of one event; (0, "") at the end of the body."""
    number, text = 0, ""
    async with asyncio.timeout(WAIT_SECONDS):
        while line := (await response.content.readline()).strip():
            field, value = line.split(b": ", 1)
            if field == b"id":
                number = int(value)
            elif value == b"[DONE]":
                text = "[DONE]"
            else:
                body = json.loads(value)
                text = body["choices"][0]["text"] if "choices" in body else body["error"]["message"]
    return number, text


async def again(rig: Rig, stream: str, last: str = "", **headers: str) -> aiohttp.ClientResponse:
    if last:
        headers["Last-Event-ID"] = last
    return await rig.http.get(f"{rig.url}/v1/streams/{stream}", headers=headers)


async def leave(rig: Rig, response: aiohttp.ClientResponse) -> None:
    """The connection is gone, and the gateway knows."""
    before = rig.gateway.connection_limits.connections
    response.close()
    async with asyncio.timeout(WAIT_SECONDS):
        while rig.gateway.connection_limits.connections == before:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


async def error_of(response: aiohttp.ClientResponse) -> tuple[int, str, str]:
    error = (await response.json())["error"]
    return response.status, error["code"], error["message"]


async def test_a_client_that_comes_back_misses_nothing(rig: Rig) -> None:
    worker = await rig.worker()
    submit, response = await begun(rig, worker)
    stream = response.headers["x-stream-id"]
    assert stream == submit.request_id
    await leave(rig, response)
    worker.send(delta(submit, 2, "c"))
    back = await again(rig, f"cmpl-{stream}", "1")
    assert back.status == 200
    assert back.headers["Content-Type"].startswith("text/event-stream")
    assert [await read_event(back) for _ in range(2)] == [(2, "b"), (3, "c")]
    worker.send(delta(submit, 3, "d", finish_reason="length"))
    assert [await read_event(back) for _ in range(3)] == [(4, "d"), (5, "[DONE]"), (0, "")]
    await rig.gone()
    assert not [m for m in worker.drained() if isinstance(m, Abort)]
    whole = await again(rig, stream)
    assert [(await read_event(whole))[1] for _ in range(5)] == ["a", "b", "c", "d", "[DONE]"]


@pytest.mark.parametrize("named", ["chatcmpl-a", "cmpl-a", "resp_a"])
@pytest.mark.parametrize("prefix", ["", "chatcmpl-", "cmpl-", "resp_"])
async def test_an_id_of_the_clients_own_may_begin_like_a_response_id(
    rig: Rig, named: str, prefix: str
) -> None:
    submit, response = await begun(rig, await rig.worker(), **{"x-request-id": named})
    assert submit.request_id.startswith(named)
    await leave(rig, response)
    back = await again(rig, prefix + submit.request_id, "1")
    assert await read_event(back) == (2, "b")
    back.close()


async def test_what_nobody_comes_back_to_is_ended_and_then_gone(make_rig: MakeRig) -> None:
    rig = await make_rig(resume_ms=300)
    worker = await rig.worker()
    submit, response = await begun(rig, worker)
    await leave(rig, response)
    assert rig.gateway.core.active == 1
    abort = await worker.next(Abort)
    assert abort.reason == "its client did not come back"
    await rig.gone()
    status, code, message = await error_of(await again(rig, submit.request_id))
    assert (status, code) == (410, "stream_gone")
    assert "0.3 s" in message


async def test_a_second_connection_takes_the_first_ones_place(rig: Rig) -> None:
    """The first may be dead without our knowing. It is cut: an end would look like an answer."""
    worker = await rig.worker()
    submit, response = await begun(rig, worker)
    back = await again(rig, submit.request_id, "2")
    with pytest.raises(aiohttp.ClientError):
        await response.content.read()
    worker.send(delta(submit, 2, "c", finish_reason="stop"))
    assert (await read_event(back))[0] == 3


async def test_the_router_knows_while_nobody_reads_it(rig: Rig) -> None:
    worker = await rig.worker()
    submit, response = await begun(rig, worker)
    await leave(rig, response)
    about = Abandoned(request_id=submit.request_id, attempt=1)
    assert await rig.router.next(Abandoned) == about
    back = await again(rig, submit.request_id, "2")
    assert await rig.router.next(Abandoned) == msgspec.structs.replace(about, abandoned=False)
    back.close()


async def test_nobody_reads_it_and_its_buffer_is_full(make_rig: MakeRig) -> None:
    rig = await make_rig(resumable_bytes_max=2_000)
    worker = await rig.worker()
    submit, response = await begun(rig, worker)
    await leave(rig, response)
    await rig.router.next(Abandoned)
    for index in range(2, 20):
        worker.send(delta(submit, index, "x"))
    cancel = await rig.router.next(Cancel)
    assert "its buffer of 2000 bytes is full" in cancel.reason
    assert (await worker.next(Abort)).request_id == submit.request_id
    back = await again(rig, submit.request_id, "2")
    number, text = 2, ""
    while "was ended" not in text:
        following, text = await read_event(back)
        assert following == number + 1, "no event is missing"
        number = following
    assert await read_event(back) == (0, "")


async def test_a_client_that_reads_slowly_is_not_cut_while_the_buffer_has_room(
    make_rig: MakeRig,
) -> None:
    """And then the stream is ended, and the client gets all that there is."""
    rig = await make_rig(
        max_model_len=1_000_000_000,
        slow_client_bytes_max=1,
        slow_client_ms_max=250,
        resumable_bytes_max=1 << 20,
    )
    worker = await rig.worker()
    awaitable = rig.http.post(
        f"{rig.url}/v1/completions", json=ASK | {"max_tokens": 1 << 24}, headers=ON
    )
    posted = BackgroundRequest(rig.tasks, awaitable)
    submit = await rig.router.next(Submit)
    size, step = 32 << 10, 0
    while rig.gateway.core.active:
        worker.send(delta(submit, step * size, "a" * size))
        await rig.turn()
        step += 1
    response = await posted.response()
    assert step * size > 1 << 20
    assert "its buffer" in (await rig.router.next(Cancel)).reason
    last, text = 0, ""
    while "was ended" not in text:
        number, text = await read_event(response)
        assert number == last + 1, "no event is missing"
        last = number
    assert await read_event(response) == (0, "")


async def test_only_the_same_key_finds_it(make_rig: MakeRig, tmp_path: Path) -> None:
    keys, path = [new_key() for _ in range(2)], tmp_path / "keys.json"
    with edited(path) as records:
        records += [KeyRecord(id=id_, sha256=sha, tenant="t") for _, id_, sha in keys]
    rig = await make_rig(keys_file=str(path))
    mine, others = ({"Authorization": f"Bearer {key}"} for key, _, _ in keys)
    worker = await rig.worker()
    awaitable = rig.http.post(f"{rig.url}/v1/completions", json=ASK, headers={**ON, **mine})
    posted = BackgroundRequest(rig.tasks, awaitable)
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "a"))
    await posted.response()
    assert (await again(rig, submit.request_id)).status == 401
    assert (await error_of(await again(rig, submit.request_id, **others)))[:2] == (404, "not_found")
    assert (await again(rig, submit.request_id, **mine)).status == 200


async def test_what_cannot_be_resumed_is_said(rig: Rig) -> None:
    worker = await rig.worker()
    submit, _ = await begun(rig, worker)
    stream = submit.request_id
    assert (await error_of(await again(rig, "nothing")))[:2] == (404, "not_found")
    assert (await error_of(await again(rig, stream, "x")))[:2] == (400, "invalid_request")
    assert (await error_of(await again(rig, stream, "3")))[:2] == (409, "stream_conflict")


@pytest.mark.parametrize(
    ("path", "header", "more", "says"),
    [
        ("/v1/completions", "true", {"stream": False}, "set stream to true"),
        ("/v1/completions", "yes", {}, "true or false"),
        ("/tokenize", "true", {"stream": False}, "set stream to true"),
    ],
)
async def test_it_is_not_ignored_where_it_cannot_be_had(
    rig: Rig, path: str, header: str, more: dict[str, object], says: str
) -> None:
    response = await rig.http.post(rig.url + path, json=ASK | more, headers={"x-resumable": header})
    status, _, message = await error_of(response)
    assert status == 400
    assert says in message


async def test_a_stream_without_the_header_ends_with_its_client(rig: Rig) -> None:
    worker = await rig.worker()
    posted = rig.ask("/v1/completions", **ASK)
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "a"))
    response = await posted.response()
    assert b"id: " not in await response.content.readline()
    response.close()
    assert (await worker.next(Abort)).reason == "client gone"
    assert (await again(rig, submit.request_id)).status == 404


async def test_a_refused_one_is_an_ordinary_error_and_keeps_no_room(make_rig: MakeRig) -> None:
    rig = await make_rig(resumable_streams_max=1)
    await rig.ready()
    rig.router.answer = refuse_with("no_capacity")
    for _ in range(3):
        response = await rig.http.post(f"{rig.url}/v1/completions", json=ASK, headers=ON)
        assert (await error_of(response))[:2] == (503, "no_capacity")


async def test_no_more_are_kept_than_the_limit(make_rig: MakeRig) -> None:
    rig = await make_rig(resumable_streams_max=1)
    worker = await rig.worker()
    await begun(rig, worker)
    response = await rig.http.post(f"{rig.url}/v1/completions", json=ASK, headers=ON)
    status, code, message = await error_of(response)
    assert (status, code) == (429, "queue_full")
    assert "1 resumable streams" in message
    assert "Retry-After" in response.headers


async def test_the_openai_client_reads_a_numbered_stream(rig: Rig) -> None:
    worker = await rig.worker()
    api = AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0)
    said: list[str] = []

    async def read() -> None:
        chunks = await api.completions.create(
            model="m", prompt="ab", stream=True, max_tokens=20, extra_headers=ON
        )
        said.extend([chunk.choices[0].text async for chunk in chunks])

    reading = rig.tasks.start("openai", read(), ends=True)
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "a"))
    worker.send(delta(submit, 1, "b", finish_reason="length"))
    await reading
    assert said == ["a", "b"]
