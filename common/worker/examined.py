"""What the health daemon of this host asks of a worker, and what it thinks of it.

Both come over HTTP on the worker's metrics socket, whose permissions keep all others out. What it
thinks travels on in every Beat, so that all routers hear it, restarted ones too; when it falls
silent, its last word is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from common.clock import Clock
from common.engine.port import Engine
from common.messages import CanaryAnswer, Opinion, OpinionTold
from common.worker.actions import AbortInEngine, AddToEngine
from common.worker.canary import Canary

REASON_CHARS_MAX = 256
MS_MIN, MS_MAX = 10.0, 60_000.0


class Examined:
    """`why_closed`: why no canary may fly now (it drains), or empty."""

    def __init__(
        self,
        engine: Engine,
        order: Callable[[AddToEngine | AbortInEngine], None],
        clock: Clock,
        why_closed: Callable[[], str],
    ) -> None:
        self.canary = Canary(engine, order, clock)
        self._fingerprint = engine.info.fingerprint
        self._clock = clock
        self._why_closed = why_closed
        self._opinion: Opinion | None = None
        self._until = 0.0

    def opinion(self) -> Opinion | None:
        if self._clock.monotonic() >= self._until:
            self._opinion = None
        return self._opinion

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/canary", self._fly), web.post("/opinion", self._hear)]

    async def _fly(self, request: web.Request) -> web.Response:
        try:
            ms = float(request.query.get("ms", ""))
        except ValueError:
            ms = 0.0
        if not MS_MIN <= ms <= MS_MAX:
            return web.Response(status=400, text=f"?ms= must be {MS_MIN:g} to {MS_MAX:g}")
        why_not = self._why_closed()
        if why_not:
            answer = CanaryAnswer(
                outcome="skipped", fingerprint=self._fingerprint, sentence=why_not
            )
        else:
            answer = await self.canary.fly(ms / 1000)
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def _hear(self, request: web.Request) -> web.Response:
        try:
            told = msgspec.json.decode(await request.read(), type=OpinionTold)
        except msgspec.MsgspecError as error:
            return web.Response(status=400, text=f"not an opinion: {error}")
        opinion = told.opinion
        if opinion is not None:
            opinion = msgspec.structs.replace(opinion, reason=opinion.reason[:REASON_CHARS_MAX])
        self._opinion = opinion
        self._until = self._clock.monotonic() + told.for_ms / 1000
        return web.Response(status=204)
