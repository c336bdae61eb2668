"""A client of the router's admin socket: one request, one answer.

The socket takes one frame, in JSON or MessagePack, and answers with one (docs/admin.md). This
client uses JSON.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from common.errors import BatonError, Code, WireError
from common.net.endpoints import ADMIN
from common.net.sockets import Socket

ANSWER_SECONDS = 5.0


class AdminAnswer(msgspec.Struct, frozen=True):
    """What the router answers."""

    ok: bool
    #: The verb's result, if `ok`.
    result: Any = None
    #: `code` and `message`, if not `ok`.
    error: dict[str, str] = {}


async def ask(
    address: str, verb: str, args: dict[str, Any] | None = None, seconds: float = ANSWER_SECONDS
) -> AdminAnswer:
    """Sends one verb and returns the router's answer. Raises BatonError(ROUTER_UNREACHABLE) if no
    router answers within `seconds`, and WireError if the answer cannot be decoded."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()
    question = msgspec.json.encode({"verb": verb, "args": args or {}})

    def on_frames(frames: list[bytes]) -> None:
        if not answer.done():
            answer.set_result(frames[-1])

    socket = Socket(
        ADMIN, connect=address, on_frames=on_frames, on_connected=lambda: _send(socket, question)
    )
    socket.start()
    try:
        async with asyncio.timeout(seconds):
            frame = await answer
    except TimeoutError as error:
        raise BatonError(
            Code.ROUTER_UNREACHABLE, f"no router answers at {address} within {seconds:g} s"
        ) from error
    finally:
        socket.close()
    try:
        return msgspec.json.decode(frame, type=AdminAnswer)
    except msgspec.MsgspecError as error:
        raise WireError(f"undecodable admin answer: {error}") from error


def _send(socket: Socket, question: bytes) -> None:
    socket.send([question])
