"""What is at an address, before any load goes there: wrong answers are named, none waited for."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from loadtest.bench import endpoint
from loadtest.bench.endpoint import DeadEndpointError, Endpoint, discover

Serve = Callable[[web.Response], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners = []

    async def start(response: web.Response) -> str:
        async def models(_: web.Request) -> web.Response:
            return response

        app = web.Application()
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


def models(*names: str) -> web.Response:
    return web.json_response({"data": [{"id": name, "max_model_len": 64} for name in names]})


async def test_the_only_model_is_taken(serve: Serve) -> None:
    assert await discover(await serve(models("a")), "", "") == Endpoint("a", 64)
    assert (await discover(await serve(models("a", "b")), "b", "")).model == "b"


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (models(), "names no model"),
        (models("a", "b"), "serves a, b: say which with --model"),
        (web.Response(status=401, text="no key"), "answers 401: no key"),
        (web.Response(text="<html>hello"), "answers no JSON object: '<html>hello'"),
    ],
)
async def test_who_does_not_answer_as_such_a_server_is_named(
    serve: Serve, response: web.Response, why: str
) -> None:
    url = await serve(response)
    with pytest.raises(DeadEndpointError, match=why):
        await discover(url, "", "")


async def test_a_model_that_is_not_there_is_named(serve: Serve) -> None:
    with pytest.raises(DeadEndpointError, match="does not serve c; it has a, b"):
        await discover(await serve(models("a", "b")), "c", "")


async def test_nobody_there_and_no_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(DeadEndpointError, match="nobody answers at http://127"):
            await discover(f"http://127.0.0.1:{closed.getsockname()[1]}", "", "")
    with pytest.raises(DeadEndpointError, match="nobody answers at no url"):
        await discover("no url", "", "")


async def test_who_takes_the_connection_and_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PROBE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DeadEndpointError, match=r"/v1/models: no answer in 0.05 s"):
            await discover(url, "", "")
