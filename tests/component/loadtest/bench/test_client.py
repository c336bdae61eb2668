"""Every way an answer can end, against a server that does as told; and the loops around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice

import pytest
from aiohttp import web

from loadtest.bench import arrivals, request_specs
from loadtest.bench.driver import DEAD_AFTER, LoadPlan, LoadRun
from loadtest.bench.figures import figures
from loadtest.bench.prompts import Maker
from loadtest.bench.sample import Sample
from loadtest.capacity.report import Slo

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Answer], Awaitable[str]]


def chunk(text: str = "", finish: str | None = None) -> str:
    return json.dumps({"choices": [{"text": text, "finish_reason": finish}]})


GOOD = [
    chunk("a"),
    chunk("b", "length"),
    json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}),
    "[DONE]",
]


def says(events: list[str]) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, events)

    return answer


async def stream(request: web.Request, events: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"x-request-id": "r1", "server-timing": "first-token;dur=12.5"}
    )
    await response.prepare(request)
    for event in events:
        await response.write(f"data: {event}\n\n".encode())
    return response


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners = []

    async def start(answer: Answer) -> str:
        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def ask_once(url: str) -> Sample:
    load_run = LoadRun(
        LoadPlan(url, Maker("model"), concurrency=1), islice(request_specs.fixed(7, 2, 1), 1)
    )
    await load_run.run()
    return load_run.samples[0]


async def test_a_whole_answer(serve: Serve) -> None:
    sample = await ask_once(await serve(says(GOOD)))
    assert sample.ok
    assert (sample.chunks, sample.tokens, sample.prompt_tokens, sample.finish) == (
        2,
        2,
        7,
        "length",
    )
    assert (sample.request_id, sample.server_first_ms) == ("r1", 12.5)
    assert not sample.usage_wrong
    assert sample.sent is not None
    assert sample.first is not None
    assert sample.done is not None
    assert sample.due <= sample.sent <= sample.first <= sample.done


@pytest.mark.parametrize(
    ("events", "error"),
    [
        (GOOD[:1], "cut"),
        ([chunk("a"), json.dumps({"error": {"message": "lost"}})], "error_event"),
        (["{", "[DONE]"], "garbled"),
    ],
)
async def test_a_stream_that_ends_badly(serve: Serve, events: list[str], error: str) -> None:
    sample = await ask_once(await serve(says(events)))
    assert (sample.error, sample.ok) == (error, False)


async def test_an_answer_without_the_tokens_it_owes_is_told(
    serve: Serve,
) -> None:
    short = json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    events = [*GOOD[:2], short, "[DONE]"]
    sample = await ask_once(await serve(says(events)))
    assert sample.ok
    told = figures([sample], LoadRun(LoadPlan("", Maker("")), ()).gaps, Slo(), exact_prompts=True)
    assert (told.usage_wrong, told.prompt_wrong) == (1, 1)


@pytest.mark.parametrize(
    ("status", "kind", "wait"), [(429, "refused 429 full", 3.0), (500, "http 500 full", None)]
)
async def test_refusals_and_errors_are_counted_by_code(
    serve: Serve, status: int, kind: str, wait: float | None
) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        headers = {"Retry-After": "3"} if wait else {}
        body = {"error": {"code": "full", "message": "no room"}}
        return web.json_response(body, status=status, headers=headers)

    sample = await ask_once(await serve(refuse))
    assert (sample.error, sample.detail, sample.retry_after) == (kind, "no room", wait)


@pytest.mark.parametrize(("obey", "tries"), [(1.0, [False, True]), (0.0, [False])])
async def test_who_obeys_asks_again_once_and_waits_for_it(
    serve: Serve, obey: float, tries: list[bool]
) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({}, status=503, headers={"Retry-After": "1"})

    plan = LoadPlan(await serve(refuse), Maker("model"), concurrency=1, obey=obey)
    load_run = LoadRun(plan, islice(request_specs.fixed(7, 2, 1), 1))
    await load_run.run()
    assert [sample.again for sample in load_run.samples] == tries
    first, last = load_run.samples[0], load_run.samples[-1]
    assert first.last is not None
    assert last is first or last.due - first.last >= 1.0


async def test_open_loop_latencies_count_from_the_intended_time(
    serve: Serve,
) -> None:
    """All are meant for the same past instant: the wait for this client's own loop is in them."""
    url = await serve(says(GOOD))
    late = (ask._replace(at=-5.0) for ask in islice(request_specs.fixed(7, 2, 1), 3))
    load_run = LoadRun(LoadPlan(url, Maker("model")), late)
    await load_run.run()
    assert all(sample.ttft_ms is not None and sample.ttft_ms > 5_000 for sample in load_run.samples)
    told = figures(load_run.samples, load_run.gaps, Slo(ttft_ms=4_000), exact_prompts=True)
    assert told.late_ms.p50 >= 5_000
    assert (told.ok, told.attainment) == (3, 0.0)


async def test_an_open_loop_does_not_wait_for_answers(
    serve: Serve,
) -> None:
    everybody = asyncio.Event()
    here = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal here
        here += 1
        if here == 20:
            everybody.set()
        await everybody.wait()
        return await stream(request, GOOD)

    load = arrivals.timed(request_specs.fixed(7, 2, 1), arrivals.burst(1, 20))
    load_run = LoadRun(LoadPlan(await serve(answer), Maker("model")), islice(load, 20))
    await load_run.run()
    assert sum(sample.ok for sample in load_run.samples) == 20


async def test_more_than_the_client_holds_is_told_as_its_own_fault(
    serve: Serve,
) -> None:
    release = asyncio.Event()
    told = []

    async def answer(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await stream(request, GOOD)

    def load() -> request_specs.RequestSpec:
        told.append(1)
        if len(told) == 6:
            release.set()
        return request_specs.RequestSpec("", (request_specs.Piece("", 7),), 2)

    plan = LoadPlan(await serve(answer), Maker("model"), open_max=4)
    load_run = LoadRun(plan, (load() for _ in range(6)))
    await load_run.run()
    assert sorted(sample.error for sample in load_run.samples) == [
        "",
        "",
        "",
        "",
        *["client_full"] * 2,
    ]


async def test_a_dead_endpoint_ends_the_load() -> None:
    load = arrivals.timed(request_specs.fixed(7, 2, 1), arrivals.constant(10_000.0))
    load_run = LoadRun(LoadPlan("http://127.0.0.1:9", Maker("model")), load)
    await load_run.run()
    assert "is gone" in load_run.stopped
    assert sum(sample.error == "connect" for sample in load_run.samples) >= DEAD_AFTER


async def test_what_is_open_when_the_load_stops_is_unfinished_not_failed(
    serve: Serve,
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        load_run.stop("enough")
        await asyncio.Event().wait()
        raise AssertionError

    load_run = LoadRun(
        LoadPlan(await serve(answer), Maker("model"), concurrency=2), request_specs.fixed(7, 2, 1)
    )
    await load_run.run()
    told = figures(load_run.samples, load_run.gaps, Slo(), exact_prompts=True)
    assert (load_run.stopped, told.ok, told.failed, told.unfinished) == ("enough", 0, 0, 2)
