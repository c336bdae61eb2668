"""The full API of a pooling model: embeddings, scores, classes.

Theory of operation: vLLM's serving classes run in helper processes alone. One helper reads the body
and renders its prompts. Each prompt is then a request of ours: submitted to the router, computed by
the worker that is loaded least, and computed elsewhere if that worker is lost. When all are there,
a helper gives what came to the same classes, which write the answer. So the gateway itself loads
nothing of vLLM, and nothing on its loop depends on how large a body or an answer is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from common.errors import BatonError, Code
from common.messages import Delta, Sampling
from services.gateway.api.kinds import Kind, RequestSpec, priority_class
from services.gateway.full_api.port import (
    ApiRequest,
    CheckedBody,
    Checks,
    CloseStream,
    JsonReply,
    OpenStream,
    Recorded,
    RenderedPrompt,
)
from services.gateway.streams.answer import PushOutcome
from services.gateway.streams.journal import DeltaOrder, Journal

#: Prompts of one HTTP request that are with the router at once, so that one body with very many
#: does not fill its queue.
IN_FLIGHT_MAX = 128
NOTHING = Sampling(max_tokens=0)
_encode = msgspec.msgpack.Encoder().encode


class PoolingApi:
    """A `FullApi`. `model`: its served name."""

    def __init__(self, model: str, checks: Checks, open_: OpenStream, close: CloseStream) -> None:
        self._model = model
        self._checks = checks
        self._open = open_
        self._close = close

    async def answer(self, api_request: ApiRequest) -> JsonReply:
        checked = await self._checks.body(api_request)
        api_request.hinted_session = checked.session
        for name in checked.ignored:
            api_request.origin.ignored.add(name)
        if checked.answer:
            return JsonReply(checked.answer)
        pooled = await self._pooled(api_request, checked)
        return JsonReply(await self._checks.answer(api_request, checked, pooled))

    def end(self, api_request: ApiRequest, reason: str) -> None:
        for spec in api_request.specs:
            self._close(spec, reason)

    def set_context(self, tokens: int) -> None:
        """Helpers are told it with each body."""

    async def _pooled(self, api_request: ApiRequest, checked: CheckedBody) -> Recorded:
        """What workers made of each prompt. Raises the first BatonError."""
        room = asyncio.Semaphore(IN_FLIGHT_MAX)
        streams: list[PooledStream] = []
        for prompt in checked.prompts:
            await _acquire(room, api_request)
            spec = self._spec(api_request, checked, prompt)
            stream = PooledStream(Journal(spec.prompt_ids, 0), api_request, room.release)
            streams.append(stream)
            api_request.specs.append(spec)
            api_request.journals.append(stream.journal)
            self._open(spec, stream, stream, api_request.origin.caller)
        for _ in range(IN_FLIGHT_MAX):  # until all have ended
            await _acquire(room, api_request)
        return {str(at): [stream.recorded()] for at, stream in enumerate(streams)}

    def _spec(
        self, api_request: ApiRequest, checked: CheckedBody, prompt: RenderedPrompt
    ) -> RequestSpec:
        origin = api_request.origin
        return RequestSpec(
            kind=Kind.COMPLETION,
            request_id=api_request.next_id(),
            model=self._model,
            created=0,
            prompt_ids=prompt.token_ids,
            sampling=NOTHING,
            deadline_ms=origin.deadline_ms,
            session=api_request.session,
            cache_salt=checked.cache_salt,
            priority=priority_class(checked.priority),
            timer=api_request.next_timer(),
            traceparent=origin.traceparent,
            attended=api_request.is_attended(),
            pooling=prompt.pooling,
        )


async def _acquire(room: asyncio.Semaphore, api_request: ApiRequest) -> None:
    await room.acquire()
    await asyncio.sleep(0)  # the loop carries streams between the prompts of a body
    if api_request.error is not None:
        raise api_request.error


class PooledStream:
    """A `TokenStream` and the `FailureListener` of one prompt. `ended` is called once."""

    def __init__(
        self, journal: Journal, api_request: ApiRequest, ended: Callable[[], None]
    ) -> None:
        self.journal = journal
        self.error: BatonError | None = None
        self._api_request = api_request
        self._ended = ended
        #: The delta, encoded.
        self._pooled: msgspec.Raw | None = None

    def push(self, delta: Delta) -> PushOutcome:
        order = self.journal.order_of(delta.attempt, delta.index)
        if order is not DeltaOrder.NEXT or self._pooled is not None:
            return PushOutcome.DROPPED
        if delta.error:
            code = Code(delta.error) if delta.error in set(Code) else Code.INTERNAL
            sentence = delta.message or "the worker gave up the request"
            self.error = BatonError(code, sentence)
            return PushOutcome.ERROR
        if not delta.pooled or delta.token_ids:
            sentence = "the worker sent nothing that was made of the prompt"
            self.error = BatonError(Code.ENGINE_FAILED, sentence)
            return PushOutcome.BROKEN
        self._pooled = msgspec.Raw(_encode(delta))
        self._api_request.has_output = True
        self.journal.take_prompt_counts(delta)
        self._ended()
        return PushOutcome.FINISHED

    def fail(self, error: BatonError) -> None:
        self._api_request.fail(error)
        self._ended()

    def recorded(self) -> msgspec.Raw:
        """The delta, for who writes the answer. Raises BatonError(INTERNAL) before the end."""
        if self._pooled is None:
            raise BatonError(Code.INTERNAL, "an answer is written before all is there")
        return self._pooled
