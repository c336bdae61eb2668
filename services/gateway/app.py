"""What the HTTP server may ask of the gateway; nothing here knows which HTTP server it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from common.clock import Clock
from common.config import Config
from common.errors import BatonError, Code
from services.gateway.api.intake import Intake
from services.gateway.api.kinds import Call, Kind
from services.gateway.api.responses import models_body
from services.gateway.auth.caller import Caller
from services.gateway.core import Core
from services.gateway.events import Closed, Event, Opened
from services.gateway.refusals import RETRY_SOON_MS, draining, unreachable
from services.gateway.streams.answer import Answer, Hears, TokenStream
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream
from services.gateway.text.port import TextPort


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    reason: str = ""


class App:
    """Requests in, events to the core out. `model_root`: what /v1/models names as the model's
    files."""

    def __init__(
        self,
        config: Config,
        core: Core,
        text: TextPort,
        *,
        model_root: str,
        clock: Clock,
        executor: Executor,
        handle: Callable[[Event], None],
    ) -> None:
        self._config = config
        self._core = core
        self._text = text
        self._model_root = model_root
        self._created = clock.unix_ms() // 1000
        self._handle = handle
        self._context_known = asyncio.Event()
        self._intake = Intake(config, text, clock, executor, self.context)

    def on_fleet(self) -> None:
        """The core heard of the fleet."""
        if self._core.fleet is not None and self._core.fleet.max_model_len:
            self._context_known.set()

    async def call(self, kind: Kind, body: bytes, request_id: str, deadline_ms: float) -> Call:
        """Raises BatonError."""
        if self._core.draining:
            raise draining()
        return await self._intake.call(kind, body, request_id, deadline_ms)

    def open(self, call: Call, answer: Answer, caller: Caller) -> None:
        """`answer` hears everything from now on, a refusal included."""
        journal = Journal(call.prompt_ids, call.sampling.max_tokens)
        stream = TextStream(
            journal,
            call.sampling,
            self._text.detokenizer(call.prompt_ids),
            answer,
            stops=call.stops,
            include_stop=call.include_stop,
        )
        self._handle(Opened(call, stream, answer, caller))

    def open_with(self, call: Call, stream: TokenStream, hears: Hears, caller: Caller) -> None:
        """As `open`, for a stream that is already made."""
        if self._core.draining:
            raise draining()
        self._handle(Opened(call, stream, hears, caller))

    def close(self, call: Call, reason: str) -> None:
        """The client is gone. Harmless after the answer's end."""
        self._handle(Closed(call.request_id, reason))

    def abandon(self, request_id: str) -> None:
        """No client came back to this resumable stream."""
        self._handle(Closed(request_id, "its client did not come back"))

    def health(self) -> Health:
        core = self._core
        if core.draining:
            return Health(ready=False, reason="this gateway is stopping")
        if not core.router_up:
            return Health(ready=False, reason="no router answers")
        if core.fleet is None:
            return Health(ready=False, reason="the router has not reported the fleet yet")
        if not core.fleet.ready:
            return Health(ready=False, reason=core.fleet.reason or "no decode worker is ready")
        return Health(ready=True)

    def model(self, name: str | None = None) -> dict[str, Any]:
        """Raises BatonError(MODEL_NOT_FOUND)."""
        self._intake.check_model(name)
        fleet = self._core.fleet
        known = fleet.max_model_len if fleet is not None else 0
        return models_body(
            self._config.model.served_name, self._model_root, self._created, known or None
        )

    async def context(self) -> int:
        """Waits up to `router_wait_ms` for a fleet that knows its max_model_len."""
        if not self._context_known.is_set():
            try:
                async with asyncio.timeout(self._config.gateway.router_wait_ms / 1000):
                    await self._context_known.wait()
            except TimeoutError:
                if not self._core.router_up:
                    raise unreachable() from None
                raise BatonError(
                    Code.NO_CAPACITY,
                    f"the fleet cannot serve yet: {self.health().reason}",
                    retry_after_ms=RETRY_SOON_MS,
                ) from None
        fleet = self._core.fleet
        return fleet.max_model_len if fleet is not None else 0
