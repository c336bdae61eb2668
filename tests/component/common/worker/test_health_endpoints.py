"""A health daemon asks a worker for a canary, and tells it what it thinks, over its socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from common.clock import ManualClock
from common.messages import HealthVerdict, Load
from common.worker.health_endpoints import REASON_CHARS_MAX, HealthEndpoints
from tests.rigs.engines import PlayedEngine

Post = Callable[..., Awaitable[tuple[int, str]]]


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.why_closed = ""
        self.health = HealthEndpoints(
            PlayedEngine(Load(running=1), seqs=1),  # full: no canary flies
            lambda order: None,
            self.clock,
            lambda: self.why_closed,
        )


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
async def post(bench: Bench, tmp_path: Path) -> AsyncIterator[Post]:
    app = web.Application()
    app.add_routes(bench.health.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    path = str(tmp_path / "s")
    await web.UnixSite(runner, path).start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=path)) as session:

        async def ask(where: str, body: bytes = b"") -> tuple[int, str]:
            async with session.post(f"http://worker{where}", data=body) as answer:
                return answer.status, await answer.text()

        yield ask
    await runner.cleanup()


def told(verdict: bytes, for_ms: int = 1_000) -> bytes:
    return b'{"opinion": %s, "for_ms": %d}' % (verdict, for_ms)


async def test_a_verdict_stands_until_it_is_taken_back_or_forgotten(
    bench: Bench, post: Post
) -> None:
    assert bench.health.verdict() is None
    down = told(b'{"reason": "its canary died", "down": true}')
    assert await post("/opinion", down) == (204, "")
    assert bench.health.verdict() == HealthVerdict(reason="its canary died", down=True)
    assert (await post("/opinion", told(b"null")))[0] == 204
    assert bench.health.verdict() is None
    await post("/opinion", down)
    bench.clock.advance(0.999)
    assert bench.health.verdict() is not None
    bench.clock.advance(0.001)
    assert bench.health.verdict() is None, "the health daemon is silent"


async def test_a_reason_has_a_bound(bench: Bench, post: Post) -> None:
    await post("/opinion", told(b'{"reason": "%s"}' % (b"x" * 5_000)))
    verdict = bench.health.verdict()
    assert verdict is not None
    assert verdict.reason == "x" * REASON_CHARS_MAX


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"opinion": null}', told(b"null", -1), told(b"null", 1 << 60), b"\xff"],
)
async def test_what_is_no_verdict_is_refused(bench: Bench, post: Post, body: bytes) -> None:
    status, text = await post("/opinion", body)
    assert status == 400
    assert text.startswith("not a verdict: ")
    assert bench.health.verdict() is None


@pytest.mark.parametrize("query", ["", "?ms=", "?ms=x", "?ms=nan", "?ms=-1", "?ms=60001"])
async def test_a_canary_needs_its_time(post: Post, query: str) -> None:
    assert await post(f"/canary{query}") == (400, "?ms= must be 10 to 60000")


async def test_why_no_canary_flew_is_said(bench: Bench, post: Post) -> None:
    status, text = await post("/canary?ms=100")
    assert status == 200
    assert '"sentence":"1 requests run and 0 wait in its engine"' in text
    bench.why_closed = "it is stopping"
    status, text = await post("/canary?ms=100")
    assert '"outcome":"skipped","fingerprint":"f"' in text
    assert '"sentence":"it is stopping"' in text
