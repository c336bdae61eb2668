"""`x-timings` on what vLLM's own serving code has written: a field in JSON, an event in a stream.

In a stream of chunks it is a chunk without choices before [DONE], as usage is; in a stream of typed
events it is the last one, of a type of our own, which clients pass over that do not know it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from services.gateway.api.kinds import Kind
from services.gateway.api.responses import timings_object
from services.gateway.api.routes import ROUTE_OF, Route
from services.gateway.api.whole import Asking
from services.gateway.streams.sse import DONE

TYPE = "baton.timings"
_KINDS: dict[Route, tuple[Kind, str]] = {
    ROUTE_OF[Kind.CHAT]: (Kind.CHAT, "chat.completion.chunk"),
    ROUTE_OF[Kind.COMPLETION]: (Kind.COMPLETION, "text_completion"),
}


def with_timings(body: bytes, asking: Asking) -> bytes:
    """`body`: a JSON object with at least one field."""
    told = timings_object(asking.origin.timing, asking.usage)
    return b"".join((body.rstrip()[:-1], b',"timings":', msgspec.json.encode(told), b"}"))


async def events_with_timings(
    chunks: AsyncIterator[bytes], asking: Asking, created: int
) -> AsyncIterator[bytes]:
    """`created`: unix seconds."""
    async for chunk in chunks:
        if chunk == DONE:
            yield _chunk(asking, created)
        yield chunk
    if asking.route not in _KINDS:
        yield f"event: {TYPE}\ndata: ".encode() + _told(asking, {"type": TYPE}) + b"\n\n"


def _chunk(asking: Asking, created: int) -> bytes:
    kind, name = _KINDS[asking.route]
    about = {
        "id": f"{kind.value}-{asking.origin.request_id}",
        "object": name,
        "created": created,
        "model": asking.calls[0].model,
        "choices": [],
    }
    return b"data: " + _told(asking, about) + b"\n\n"


def _told(asking: Asking, about: dict[str, object]) -> bytes:
    return with_timings(msgspec.json.encode(about), asking)
