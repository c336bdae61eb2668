"""`x-timings` for answers that vLLM's serving code wrote: a field in JSON, an event in a stream.

In a stream of chunks it is a chunk without choices before [DONE], as usage is. In a stream of typed
events it is the last event and has a type of our own; clients pass over types that they do not
know. A stream that generated nothing itself, as one that follows the background, has none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from common.clock import Clock
from services.gateway.api.kinds import Kind
from services.gateway.api.response_bodies import timings_object
from services.gateway.api.routes import ROUTE_OF, Route
from services.gateway.api.sse import DONE
from services.gateway.full_api.port import ApiRequest

TYPE = "baton.timings"
_KINDS: dict[Route, tuple[Kind, str]] = {
    ROUTE_OF[Kind.CHAT]: (Kind.CHAT, "chat.completion.chunk"),
    ROUTE_OF[Kind.COMPLETION]: (Kind.COMPLETION, "text_completion"),
}


def with_timings(body: bytes, api_request: ApiRequest, now: float) -> bytes:
    """`body`: a JSON object with at least one field."""
    times = timings_object(api_request.origin.timer, api_request.usage, now)
    return b"".join((body.rstrip()[:-1], b',"timings":', msgspec.json.encode(times), b"}"))


async def events_with_timings(
    chunks: AsyncIterator[bytes], api_request: ApiRequest, clock: Clock
) -> AsyncIterator[bytes]:
    created = clock.unix_ms() // 1000
    async for chunk in chunks:
        if chunk == DONE:
            yield _chunk(api_request, created, clock.monotonic())
        yield chunk
    if api_request.route not in _KINDS and api_request.specs:
        body = with_timings(msgspec.json.encode({"type": TYPE}), api_request, clock.monotonic())
        yield f"event: {TYPE}\ndata: ".encode() + body + b"\n\n"


def _chunk(api_request: ApiRequest, created: int, now: float) -> bytes:
    kind, name = _KINDS[api_request.route]
    chunk = {
        "id": f"{kind.value}-{api_request.origin.request_id}",
        "object": name,
        "created": created,
        "model": api_request.specs[0].model,
        "choices": [],
    }
    return b"data: " + with_timings(msgspec.json.encode(chunk), api_request, now) + b"\n\n"
