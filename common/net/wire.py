"""Encodes messages into frames and decodes frames, strictly.

A frame over `FRAME_BYTES_MAX`, or one that does not decode to an expected message, raises
`WireError`; the caller drops and counts it. A peer cannot choose a class: the set of messages that
a socket accepts is fixed where its `Decoder` is made.
"""

from __future__ import annotations

from array import array
from typing import Any, Generic, TypeVar

import msgspec

from common.errors import WireError
from common.messages import WIRE_VERSION, Hello, RequestBody

FRAME_BYTES_MAX = 1 << 20
BODY_BYTES_MAX = 64 << 20
"""Of the second frame of Submit, Prefill and Decode, which may have images."""

M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()
_body_decoder = msgspec.msgpack.Decoder(RequestBody)


def encode(message: msgspec.Struct) -> bytes:
    """Returns one frame. Raises WireError if it would exceed the frame limit."""
    frame = _encoder.encode(message)
    most = BODY_BYTES_MAX if isinstance(message, RequestBody) else FRAME_BYTES_MAX
    if len(frame) > most:
        kind = type(message).__name__
        raise WireError(f"{kind} of {len(frame)} bytes exceeds the frame limit {most}")
    return frame


class Decoder(Generic[M]):
    """Decodes frames into one fixed union of messages."""

    def __init__(self, union: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(union)

    def decode(self, frame: bytes | memoryview) -> M:
        """Raises WireError."""
        if len(frame) > FRAME_BYTES_MAX:
            raise WireError(f"frame of {len(frame)} bytes exceeds the limit {FRAME_BYTES_MAX}")
        try:
            return self._decoder.decode(frame)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise WireError(f"undecodable frame: {error}") from error


def decode_body(frame: bytes | memoryview) -> RequestBody:
    """Decodes the second frame of Submit, Prefill and Decode. Raises WireError."""
    if len(frame) > BODY_BYTES_MAX:
        raise WireError(f"body of {len(frame)} bytes exceeds the limit {BODY_BYTES_MAX}")
    try:
        body = _body_decoder.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"undecodable body: {error}") from error
    if len(body.prompt_ids) % 4:
        raise WireError("prompt_ids is not a whole number of uint32")
    return body


def check_hello(hello: Hello) -> None:
    """Raises WireError if the peer has another wire version."""
    if hello.wire_version != WIRE_VERSION:
        raise WireError(
            f"{hello.role} {hello.name} speaks wire version {hello.wire_version}, "
            f"this process {WIRE_VERSION}: install the same baton-serve on both"
        )


def pack_ids(ids: list[int]) -> bytes:
    """Token ids as uint32 little endian."""
    return array("I", ids).tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    """The reverse of `pack_ids`."""
    ids = array("I")
    ids.frombytes(packed)
    return ids.tolist()
