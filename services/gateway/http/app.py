"""The port through which HTTP handlers reach the gateway. It does not depend on aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from common.clock import Clock
from common.config import Config
from common.errors import BatonError, Code
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.response_bodies import answer_body
from services.gateway.api.routes import ROUTE_OF
from services.gateway.auth.caller import Caller
from services.gateway.helper.jobs import INLINE_BYTES_MAX, PlainJob, PlainReport
from services.gateway.http.served_model import ServedModel, asked_model
from services.gateway.requests.events import Attended, Closed, Event, Opened
from services.gateway.requests.port import CoreView
from services.gateway.requests.refusals import RETRY_SOON_MS, draining
from services.gateway.streams.answer import Answer, Collected, FailureListener, TokenStream
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    reason: str = ""


class Asked(NamedTuple):
    """The model that a request asks for, and the id of its LoRA adapter; empty: none."""

    model: ServedModel
    adapter: str = ""


class App:
    """Turns requests into events for the core. `models`: those that are served, the first of which
    is meant where a request names none and there is no other. `handle` takes an event into the core
    and carries out its actions."""

    def __init__(
        self,
        config: Config,
        core: CoreView,
        models: Sequence[ServedModel],
        handle: Callable[[Event], None],
    ) -> None:
        self._config = config
        self._core = core
        self._handle = handle
        self.models = {model.name: model for model in models}
        self._by_name = {name: model for model in models for name in model.names}

    def chosen(self, body: bytes, caller: Caller) -> Asked:
        """What this body asks for. Raises BatonError(MODEL_NOT_FOUND | NO_CAPACITY)."""
        only = len(self._by_name) == 1 and caller.models is None
        model = next(iter(self.models.values()))
        if only and not model.adapters and not self._config.adapters:
            return Asked(model)
        return self._named(asked_model(body), caller)

    def _named(self, name: str | None, caller: Caller) -> Asked:
        """`name`: None where a request names none."""
        known = self._names(caller)
        if name is None and len(self.models) == 1:
            name = next(iter(self.models))
        if name in known:
            return known[name]
        names = ", ".join(map(repr, known)) or "none for this key"
        if name in self._config.adapters and (caller.models is None or name in caller.models):
            sentence = f"no decode worker has the adapter {name!r} now; try again, or see its log"
            raise BatonError(Code.NO_CAPACITY, sentence, retry_after_ms=RETRY_SOON_MS)
        what = "name a model" if name is None else f"the model {name[:96]!r} does not exist"
        sentence = f"{what}; this server serves {names}"
        raise BatonError(Code.MODEL_NOT_FOUND, sentence, param="model")

    def _names(self, caller: Caller) -> dict[str, Asked]:
        """What this caller may ask for, by name. A key that is limited to a model may use all names
        of it, and of its adapters those that it is limited to, too."""
        allowed = caller.models
        names = {
            name: Asked(model)
            for name, model in self._by_name.items()
            if allowed is None or not allowed.isdisjoint(model.names)
        }
        for model in self.models.values():
            for name, adapter in model.adapters.items():
                if allowed is None or name in allowed:
                    names.setdefault(name, Asked(model, adapter.id))
        return names

    def check_adapter_name(self, name: str) -> None:
        """Of one that is to be loaded. Raises BatonError(INVALID_REQUEST)."""
        if name in self._by_name:
            sentence = f"a model has the name {name!r}; choose another for the adapter"
            raise BatonError(Code.INVALID_REQUEST, sentence, param="lora_name")

    async def prepare(
        self,
        kind: Kind,
        body: bytes,
        request_id: str,
        deadline_ms: float,
        ignored: IgnoredFields,
        caller: Caller,
    ) -> RequestSpec:
        """Raises BatonError. A helper process prepares a body of more than
        `INLINE_BYTES_MAX`."""
        if self._core.draining:
            raise draining()
        model, adapter = self.chosen(body, caller)
        model.check_route(ROUTE_OF[kind])
        if len(body) <= INLINE_BYTES_MAX:
            about = (kind, body, request_id, deadline_ms)
            return await model.intake.prepare(*about, ignored, adapter)
        job = PlainJob(
            body,
            await model.context(),
            kind=kind,
            request_id=request_id,
            deadline_ms=deadline_ms,
            adapter=adapter,
        )
        report = await model.helpers.run(job, caller.key_id)
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
            self.models[spec.model].text.detokenizer(spec.prompt_ids),
            answer,
            stops=spec.stops,
            include_stop=spec.include_stop,
        )
        self._handle(Opened(spec, stream, answer, caller))

    async def answered(self, spec: RequestSpec, caller: Caller, clock: Clock) -> bytes:
        """The body of an answer that does not stream. Who waits for it may be cancelled. Raises
        BatonError."""
        done = asyncio.Event()
        answer = Collected(done.set)
        self.open(spec, answer, caller)
        try:
            await done.wait()
        finally:
            self.close(spec, "client gone")
        if answer.ending is None:
            raise answer.error or BatonError(Code.INTERNAL, "the answer has no end")
        return answer_body(
            spec, answer.joined_text, answer.token_ids, answer.ending, clock.monotonic()
        )

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
        reasons = [model.reason for model in self.models.values()]
        return Health(ready=False, reason=reasons[0]) if all(reasons) else Health(ready=True)

    def cards(self, caller: Caller) -> list[dict[str, Any]]:
        """The entries of /v1/models that this caller may see."""
        names = self._names(caller)
        cards = [card for model in self.models.values() for card in model.cards()]
        return [card for card in cards if card["id"] in names]

    def card(self, name: str, caller: Caller) -> dict[str, Any]:
        """Raises BatonError(MODEL_NOT_FOUND)."""
        cards = self._named(name, caller).model.cards()
        return next(card for card in cards if card["id"] == name)
