"""The endpoints by which the health daemon of this host tests a worker and gives its verdict.

Both are HTTP on the worker's metrics socket, which only the host's own daemons can open. The
verdict is repeated in every Beat, so that all routers know it, also after a restart. If the health
daemon falls silent, its last verdict is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from common.clock import Clock
from common.engine.port import Engine
from common.messages import CanaryAnswer, HealthVerdict, HealthVerdictUpdate
from common.worker.actions import AbortInEngine, AddToEngine
from common.worker.canary import Canary

REASON_CHARS_MAX = 256
MS_MIN, MS_MAX = 10.0, 60_000.0


class HealthEndpoints:
    """`why_closed` returns why no canary may run now, such as a drain; empty if one may."""

    def __init__(
        self,
        engine: Engine,
        enqueue: Callable[[AddToEngine | AbortInEngine], None],
        clock: Clock,
        why_closed: Callable[[], str],
    ) -> None:
        self.canary = Canary(engine, enqueue, clock)
        self._fingerprint = engine.info.fingerprint
        self._clock = clock
        self._why_closed = why_closed
        self._verdict: HealthVerdict | None = None
        self._until = 0.0

    def verdict(self) -> HealthVerdict | None:
        """The verdict in force; None if there is none."""
        if self._clock.monotonic() >= self._until:
            self._verdict = None
        return self._verdict

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/canary", self._run_canary), web.post("/opinion", self._set_verdict)]

    async def _run_canary(self, request: web.Request) -> web.Response:
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
            answer = await self.canary.run(ms / 1000)
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def _set_verdict(self, request: web.Request) -> web.Response:
        try:
            update = msgspec.json.decode(await request.read(), type=HealthVerdictUpdate)
        except msgspec.MsgspecError as error:
            return web.Response(status=400, text=f"not a verdict: {error}")
        verdict = update.health_verdict
        if verdict is not None:
            verdict = msgspec.structs.replace(verdict, reason=verdict.reason[:REASON_CHARS_MAX])
        self._verdict = verdict
        self._until = self._clock.monotonic() + update.for_ms / 1000
        return web.Response(status=204)
