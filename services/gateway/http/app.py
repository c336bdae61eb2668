"""The port through which HTTP handlers reach the gateway. It does not depend on aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.clock import Clock
from common.config import Config
from common.errors import BatonError, Code
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.intake import Intake
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.response_bodies import models_body
from services.gateway.auth.caller import Caller
from services.gateway.helper.jobs import INLINE_BYTES_MAX, PlainJob, PlainReport
from services.gateway.helper.pool import HelperPool
from services.gateway.requests.core import Core
from services.gateway.requests.events import Attended, Closed, Event, Opened
from services.gateway.requests.refusals import RETRY_SOON_MS, draining, unreachable
from services.gateway.streams.answer import Answer, FailureListener, TokenStream
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream
from services.gateway.text.port import TextPort


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    reason: str = ""


class App:
    """Turns requests into events for the core. `model_root`: what /v1/models gives as the place of
    the model's files. `handle` takes an event into the core and carries out its actions."""

    def __init__(
        self,
        config: Config,
        core: Core,
        text: TextPort,
        *,
        model_root: str,
        clock: Clock,
        helpers: HelperPool,
        handle: Callable[[Event], None],
    ) -> None:
        self._config = config
        self._served_name = config.model.served_name
        self._core = core
        self._text = text
        self._model_root = model_root
        self._created = clock.unix_ms() // 1000
        self._handle = handle
        self._context_known = asyncio.Event()
        self._intake = Intake(config, text, clock, self.context)
        self._helpers = helpers

    def on_context(self) -> None:
        """The core knows the longest sequence that the fleet takes."""
        self._context_known.set()

    async def prepare(
        self,
        kind: Kind,
        body: bytes,
        request_id: str,
        deadline_ms: float,
        ignored: IgnoredFields,
        key_id: str,
    ) -> RequestSpec:
        """Raises BatonError. A helper process prepares a body of more than
        `INLINE_BYTES_MAX`."""
        if self._core.draining:
            raise draining()
        if len(body) <= INLINE_BYTES_MAX:
            return await self._intake.prepare(kind, body, request_id, deadline_ms, ignored)
        job = PlainJob(
            body, await self.context(), kind=kind, request_id=request_id, deadline_ms=deadline_ms
        )
        report = await self._helpers.run(job, key_id)
        assert isinstance(report, PlainReport)
        for name in report.ignored:
            ignored.add(name)
        return report.spec

    def open(self, spec: RequestSpec, answer: Answer, caller: Caller) -> None:
        """From now on everything goes to `answer`, a refusal included."""
        journal = Journal(spec.prompt_ids, spec.sampling.max_tokens)
        stream = TextStream(
            journal,
            spec.sampling,
            self._text.detokenizer(spec.prompt_ids),
            answer,
            stops=spec.stops,
            include_stop=spec.include_stop,
        )
        self._handle(Opened(spec, stream, answer, caller))

    def open_with(
        self, spec: RequestSpec, stream: TokenStream, listener: FailureListener, caller: Caller
    ) -> None:
        """Like `open`, for a stream that was made elsewhere. Raises BatonError(DRAINING)."""
        if self._core.draining:
            raise draining()
        self._handle(Opened(spec, stream, listener, caller))

    def close(self, spec: RequestSpec, reason: str) -> None:
        """The client is gone. Harmless after the end of the answer."""
        self._handle(Closed(spec.request_id, reason))

    def attend(self, request_id: str, *, attended: bool) -> None:
        """The client of this resumable stream came back, or left."""
        self._handle(Attended(request_id, attended))

    def abandon(self, request_id: str, reason: str) -> None:
        """Ends a resumable stream that has no client."""
        self._handle(Closed(request_id, reason))

    def ignored_fields(self) -> IgnoredFields:
        """Of a request that comes now."""
        refuses = self._config.gateway.unknown_fields == "refuse"
        return IgnoredFields(self._core.counters.field_ignored, refuses=refuses)

    @property
    def load(self) -> int:
        """Live requests."""
        return self._core.active

    def health(self) -> Health:
        core = self._core
        if core.draining:
            return Health(ready=False, reason="this gateway is stopping")
        if not core.router_up:
            return Health(ready=False, reason="no router answers")
        fleet = core.fleet_of(self._served_name)
        if fleet is None:
            return Health(ready=False, reason="the router has not reported the fleet yet")
        if not fleet.ready:
            return Health(ready=False, reason=fleet.reason or "no decode worker is ready")
        return Health(ready=True)

    def model(self, name: str | None = None) -> dict[str, Any]:
        """Raises BatonError(MODEL_NOT_FOUND)."""
        self._intake.check_model(name)
        fleet = self._core.fleet_of(self._served_name)
        known = fleet.max_model_len if fleet is not None else 0
        return models_body(self._served_name, self._model_root, self._created, known or None)

    async def context(self) -> int:
        """The longest sequence that the fleet takes, in tokens. Waits up to `router_wait_ms` until
        it is known. Raises BatonError(ROUTER_UNREACHABLE | NO_CAPACITY)."""
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
        fleet = self._core.fleet_of(self._served_name)
        return fleet.max_model_len if fleet is not None else 0
