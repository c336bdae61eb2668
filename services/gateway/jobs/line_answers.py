"""Runs a request of the ledger, on the way that the same request takes over HTTP.

Checks, admission, journal and recovery are those of any request. The class of a line is the lowest,
whatever the key's is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from common.clock import Clock
from common.errors import BatonError, Code
from common.messages import PriorityClass
from services.gateway.api.kinds import Kind
from services.gateway.api.routes import ROUTE_OF, Route
from services.gateway.auth.authenticator import Authenticator
from services.gateway.full_api.port import Origin
from services.gateway.http.app import App
from services.gateway.http.full_api_routes import FullApiRoutes
from services.gateway.streams.phase_timer import PLACED, PhaseTimer

KIND_OF: dict[Route, Kind] = {route: kind for kind, route in ROUTE_OF.items()}


class PlacedTimer(PhaseTimer):
    """Also calls `on_placed` when a worker is named, each time."""

    __slots__ = ("_on_placed",)

    def __init__(self, arrived: float, on_placed: Callable[[], None]) -> None:
        super().__init__(arrived)
        self._on_placed = on_placed

    def enter(self, phase: str, attempt: int, now: float) -> None:
        super().enter(phase, attempt, now)
        if phase == PLACED:
            self._on_placed()


class LineAnswers:
    def __init__(
        self, app: App, full_api: FullApiRoutes, authenticator: Authenticator, clock: Clock
    ) -> None:
        self._app = app
        self._full_api = full_api
        self._authenticator = authenticator
        self._clock = clock

    @property
    def is_possible(self) -> bool:
        """False while nothing can be served."""
        return self._app.health().ready

    async def answer(
        self,
        endpoint: str,
        body: bytes,
        owner: str,
        request_id: str,
        on_placed: Callable[[], None],
        *,
        is_line: bool = True,
        on_event: Callable[[bytes], None] | None = None,
    ) -> bytes:
        """The body of the answer; of one that streams, each event goes to `on_event`, and the last
        is returned. `is_line`: else its class is that of the key, as over HTTP. Who waits for it
        may be cancelled. Raises BatonError, also INVALID_API_KEY where the key that it came with
        was revoked."""
        caller = self._authenticator.holder(owner)
        if caller is None:
            sentence = "the API key that this came with is not valid any more"
            raise BatonError(Code.INVALID_API_KEY, sentence)
        if is_line:
            caller = replace(caller, priority=PriorityClass.BATCH)
        timer = PlacedTimer(self._clock.monotonic(), on_placed)
        ignored = self._app.ignored_fields()
        origin = Origin(request_id, caller, timer=timer, ignored=ignored)
        route = Route(endpoint)
        kind = KIND_OF.get(route)
        spec = None if kind is None else await self._full_api.plain_spec(kind, body, origin)
        if spec is None:
            return await self._full_api.answered(route, body, origin, on_event)
        return await self._app.answered(spec, caller, self._clock)
