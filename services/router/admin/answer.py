"""From one admin frame to its answer. Nothing that a client sends makes it raise.

A frame that starts with `{` is JSON and is answered in JSON; any other frame is MessagePack. Verbs
return structs and plain values, which are encoded here and nowhere before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from common.errors import BatonError, Code
from common.net.admin_verbs import VERBS
from common.net.wire import FRAME_BYTES_MAX
from services.router.admin.registry import RUN
from services.router.admin.verb import View, checked


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A verb and its arguments, as a client sends them."""

    verb: str
    args: dict[str, Any] = {}


_json = msgspec.json.Decoder(Question)
_msgpack = msgspec.msgpack.Decoder(Question)


def answer(frame: bytes, view: Callable[[], View]) -> bytes:
    """The answer's frame, within the frame limit."""
    in_json = frame[:1] == b"{"
    encode = msgspec.json.encode if in_json else msgspec.msgpack.encode
    try:
        question = _decode(frame, in_json=in_json)
        encoded = encode({"ok": True, "result": run(view(), question.verb, question.args)})
        if len(encoded) > FRAME_BYTES_MAX:
            raise BatonError(
                Code.BODY_TOO_LARGE,
                f"the answer of {len(encoded)} bytes is over the limit of {FRAME_BYTES_MAX}; "
                "ask for less, for example with limit",
            )
    except BatonError as error:
        encoded = encode(failure(error))
    return encoded


def failure(error: BatonError) -> dict[str, Any]:
    """The answer that carries an error."""
    return {"ok": False, "error": {"code": error.code.value, "message": error.message}}


def _decode(frame: bytes, *, in_json: bool) -> Question:
    try:
        return (_json if in_json else _msgpack).decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BatonError(
            Code.INVALID_REQUEST,
            f'not a question: {error}; ask like {{"verb": "help", "args": {{}}}}',
        ) from error


def run(view: View, name: str, args: dict[str, Any]) -> Any:
    """The result of a verb. Raises BatonError that names what there is."""
    if name not in RUN:
        raise BatonError(Code.NOT_FOUND, f"no verb {name[:64]!r}; there are: {', '.join(VERBS)}")
    return RUN[name](view, checked(VERBS[name], args))
