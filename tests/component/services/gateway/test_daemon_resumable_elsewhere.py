"""A client that comes back to another gateway process than the one that has its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import structlog

from common.clock import SystemClock
from common.messages import Submit
from common.process.lifecycle import Tasks
from services.gateway.daemon import Gateway
from services.gateway.text.light import LightText
from tests.component.services.gateway.rig import BackgroundRequest, FakeWorker, MakeRig, Rig, delta
from tests.component.services.gateway.test_daemon_resumable import ON, again, leave, read_event
from tests.rigs.peers import WAIT_SECONDS

ASK = {"model": "m", "prompt": "ab", "stream": True, "max_tokens": 1 << 24}
LARGE = {"max_model_len": 1 << 30, "resumable_bytes_max": 1 << 20}


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig(**LARGE, slow_client_bytes_max=1, slow_client_ms_max=250)


@asynccontextmanager
async def another(rig: Rig, light: LightText) -> AsyncIterator[str]:
    """The URL of a second gateway on the host. The router answers it alone from then on."""
    texts, log = {"m": light}, structlog.get_logger("g1")
    daemon = Gateway(rig.config, "g1", texts, {"m": "/model"}, SystemClock(), log)
    tasks = Tasks()
    await daemon.start(tasks)
    host, port = daemon.http_address
    try:
        yield f"http://{host}:{port}"
    finally:
        await daemon.stop()
        await tasks.cancel_all()


async def left(rig: Rig, worker: FakeWorker) -> Submit:
    """A stream that said `a` and whose client is gone."""
    awaitable = rig.http.post(f"{rig.url}/v1/completions", json=ASK, headers=ON)
    posted = BackgroundRequest(rig.tasks, awaitable)
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "a"))
    response = await posted.response()
    assert await read_event(response) == (1, "a")
    await leave(rig, response)
    return submit


async def from_other(
    rig: Rig, other: str, submit: Submit, last: str = "1"
) -> aiohttp.ClientResponse:
    url = f"{other}/v1/streams/{submit.request_id}"
    return await rig.http.get(url, headers={"Last-Event-ID": last})


async def test_it_is_passed_on_to_its_end(rig: Rig, light: LightText) -> None:
    worker = await rig.worker()
    submit = await left(rig, worker)
    worker.send(delta(submit, 1, "b"))
    async with another(rig, light) as other:
        back = await from_other(rig, other, submit)
        assert back.headers["x-stream-id"] == submit.request_id
        assert await read_event(back) == (2, "b")
        worker.send(delta(submit, 2, "c", finish_reason="length"))
        assert [await read_event(back) for _ in range(3)] == [(3, "c"), (4, "[DONE]"), (0, "")]


async def test_where_it_breaks_off_the_client_sees_no_end(rig: Rig, light: LightText) -> None:
    worker = await rig.worker()
    submit = await left(rig, worker)
    worker.send(delta(submit, 1, "b"))
    async with another(rig, light) as other:
        back = await from_other(rig, other, submit)
        assert await read_event(back) == (2, "b")
        taken_up = await again(rig, submit.request_id, "2")
        with pytest.raises(aiohttp.ClientError):
            await back.content.read()
        taken_up.close()


async def test_a_client_that_reads_slowly_there_is_not_cut_either(
    rig: Rig, light: LightText
) -> None:
    """Its pace is that of the stream: what it does not take waits in the stream's buffer."""
    worker = await rig.worker()
    submit = await left(rig, worker)
    worker.send(delta(submit, 1, "b"))
    size, step = 32 << 10, 0
    async with another(rig, light) as other:
        back = await from_other(rig, other, submit)
        async with asyncio.timeout(WAIT_SECONDS):
            while rig.gateway.core.active:
                worker.send(delta(submit, 2 + step * size, "a" * size))
                await rig.turn()
                step += 1
        assert step * size > 1 << 20
        last, text = 1, ""
        while "was ended" not in text:
            number, text = await read_event(back)
            assert number == last + 1, "no event is missing"
            last = number
        assert await read_event(back) == (0, "")
