"""The health daemon's HTTP: verdict, metrics, and the dashboard with its stream of states.

The dashboard needs no build step and loads nothing from other hosts. Each of at most `WATCHERS_MAX`
pages receives the whole state as one server-sent event per round. A page that reads slowly misses
rounds and does not delay them.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import Any, Protocol

import msgspec
from aiohttp import web

from common.telemetry.exposition import TEXT
from services.health.dashboard.fleet import FleetWatch
from services.health.verdicts.host_verdict import HealthLevel

WATCHERS_MAX = 32
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
WRITE_SECONDS = 5.0
ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/draw.js": ("draw.js", "text/javascript"),
}


class Source(Protocol):
    """What the pages are made of."""

    fleet: FleetWatch
    watchers: set[asyncio.Event]

    def verdict(self) -> dict[str, Any]: ...

    async def metrics(self) -> str: ...


class Pages:
    def __init__(self, source: Source) -> None:
        self._source = source
        folder = files("services.health.dashboard") / "web"
        self._assets = {path: (folder / file).read_bytes() for path, (file, _) in ASSETS.items()}

    def routes(self) -> list[web.RouteDef]:
        return [
            *[web.get(path, self._asset) for path in ASSETS],
            web.get("/health", self._health),
            web.get("/live", self._live),
            web.get("/metrics", self._metrics),
            web.get("/api/state", self._state),
            web.get("/api/stream", self._stream),
            web.get("/api/explain/{id}", self._explain),
        ]

    def state(self) -> bytes:
        return msgspec.json.encode(
            {**self._source.fleet.page_state(), "health": self._source.verdict()}
        )

    async def _asset(self, request: web.Request) -> web.Response:
        kind = ASSETS[request.path][1]
        body = self._assets[request.path]
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)

    async def _health(self, _: web.Request) -> web.Response:
        verdict = self._source.verdict()
        down = verdict["verdict"] == HealthLevel.DOWN.name.lower()
        return web.json_response(verdict, status=503 if down else 200)

    async def _live(self, _: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=(await self._source.metrics()).encode(), headers={"Content-Type": TEXT}
        )

    async def _state(self, _: web.Request) -> web.Response:
        await self._source.fleet.refresh()
        return web.Response(body=self.state(), content_type="application/json")

    async def _explain(self, request: web.Request) -> web.Response:
        timeline, why = await self._source.fleet.explain(request.match_info["id"][:256])
        if timeline is None:
            return web.json_response({"error": why}, status=404)
        return web.Response(body=msgspec.json.encode(timeline), content_type="application/json")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if len(self._source.watchers) >= WATCHERS_MAX:
            return web.Response(status=503, text=f"{WATCHERS_MAX} pages watch already")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        fresh = asyncio.Event()
        self._source.watchers.add(fresh)
        try:
            await response.prepare(request)
            await self._source.fleet.refresh()
            fresh.set()
            while True:
                await fresh.wait()
                fresh.clear()
                async with asyncio.timeout(WRITE_SECONDS):
                    await response.write(b"data: " + self.state() + b"\n\n")
        except (ConnectionError, TimeoutError):
            return response
        finally:
            self._source.watchers.discard(fresh)
