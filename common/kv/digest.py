"""The 64 bytes before every KV payload, and the digest that decides whether it may be used.

Theory of operation: the receiver knows what it asked for (`Expected`) and accepts a message only if
the header says exactly that and xxh3_64 of the payload, seeded by transfer and index, is the
header's. The seed makes a payload that belongs elsewhere fail as a damaged one does. Anything else
is a verdict, never an exception: what arrives is what a peer or a wire made of it.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

HEADER_BYTES = 64
MAGIC = b"bKV1"
VERSION = 1
INDEX_BITS = 20
INDEX_MAX = 1 << INDEX_BITS
_HEADER = struct.Struct("<4sBBHQIIIHHQQ16x")
assert _HEADER.size == HEADER_BYTES


class Flag(enum.IntEnum):
    """`VOID`: the sender answers a granted message without data; it gave the transfer up."""

    DATA = 1
    VOID = 2


class Verdict(enum.Enum):
    """What an arrived message is worth. `LOST`: the transport failed, nothing arrived."""

    OK = "ok"
    VOID = "void"
    CORRUPT = "corrupt"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Expected:
    """One message as both sides compute it. Blocks count within the prompt, from 0."""

    transfer: int
    index: int
    first_block: int
    blocks: int
    layers: int
    payload_bytes: int

    @property
    def message_bytes(self) -> int:
        return HEADER_BYTES + self.payload_bytes


def payload_digest(payload: NDArray[np.uint8], transfer: int, index: int) -> int:
    seed = ((transfer << INDEX_BITS) ^ index) & 0xFFFF_FFFF_FFFF_FFFF
    return xxhash.xxh3_64_intdigest(payload.data, seed=seed)


def seal(message: NDArray[np.uint8], what: Expected) -> None:
    """Writes the header before a payload that is in place: `message` is the whole buffer."""
    payload = message[HEADER_BYTES : what.message_bytes]
    digest = payload_digest(payload, what.transfer, what.index)
    _pack(message, Flag.DATA, what, what.payload_bytes, digest)


def seal_void(message: NDArray[np.uint8], transfer: int, index: int) -> None:
    """Writes a header-only message."""
    what = Expected(transfer, index, 0, 0, 0, 0)
    _pack(message, Flag.VOID, what, 0, 0)


def check(message: NDArray[np.uint8], expected: Expected) -> Verdict:
    """The verdict on a received buffer of at least `expected.message_bytes`."""
    fields = _HEADER.unpack_from(message.data, 0)
    magic, version, flag, _, transfer, index = fields[:6]
    if (magic, version, transfer, index) != (MAGIC, VERSION, expected.transfer, expected.index):
        return Verdict.CORRUPT
    if flag == Flag.VOID:
        return Verdict.VOID
    first_block, blocks, first_layer, layers, payload_bytes, digest = fields[6:]
    shape = (flag, first_block, blocks, first_layer, layers, payload_bytes)
    if shape != (
        Flag.DATA,
        expected.first_block,
        expected.blocks,
        0,
        expected.layers,
        expected.payload_bytes,
    ):
        return Verdict.CORRUPT
    payload = message[HEADER_BYTES : expected.message_bytes]
    if payload_digest(payload, expected.transfer, expected.index) != digest:
        return Verdict.CORRUPT
    return Verdict.OK


def _pack(
    message: NDArray[np.uint8], flag: Flag, what: Expected, payload_bytes: int, digest: int
) -> None:
    _HEADER.pack_into(
        message.data,
        0,
        MAGIC,
        VERSION,
        flag,
        0,
        what.transfer,
        what.index,
        what.first_block,
        what.blocks,
        0,
        what.layers,
        payload_bytes,
        digest,
    )
