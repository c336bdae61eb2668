"""The 64 bytes before every KV payload, and the digest that decides whether it may be used.

Theory of operation: the receiver knows the transfer's plan, so it knows what every message must
be; a header only claims which one this is. It is accepted if the header says exactly what the plan
has at that index and the digest is the header's: xxh3_64 of the payload's `Sum`, seeded by
transfer, index and `early_bytes`. The seed makes a payload that belongs elsewhere fail as a damaged
one does. Anything else is a verdict, never an exception: what arrives is what a peer or a wire made
of it. The sum comes with a copy of the payload (`kernel.py`), so it is known when the copy is
made: `judge` is told how to get at it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import xxhash

from common.kv.kernel import Bytes, Sum

HEADER_BYTES = 64
MAGIC = b"bKV1"
VERSION = 3
INDEX_BITS = 20
INDEX_MAX = 1 << INDEX_BITS
NOT_YET = (1 << 64) - 1
"""`early_bytes` of a message that left while the prefill went on."""
_HEADER = struct.Struct("<4sBBHQIIIHHQQQQ")
assert _HEADER.size == HEADER_BYTES
_U64 = (1 << 64) - 1


class Flag(enum.IntEnum):
    """`VOID`: the sender answers a granted slot without data; it gave the transfer up. `LENT`: the
    message lies in the sender's staging memory."""

    DATA = 1
    VOID = 2
    LENT = 3


class Encoding(enum.IntEnum):
    """What was done to the payload, before the digest was taken."""

    NONE = 0
    FP8 = 1


class Verdict(enum.Enum):
    """What an arrived message is worth. `LOST`: the transport failed, nothing arrived."""

    OK = "ok"
    VOID = "void"
    CORRUPT = "corrupt"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Expected:
    """One message as both sides compute it. Blocks count within the prompt, from 0. `fp8_bytes`:
    its payload if it is compressed; 0: it must not be."""

    transfer: int
    index: int
    first_block: int
    blocks: int
    first_layer: int
    layers: int
    payload_bytes: int
    fp8_bytes: int = 0
    encoding: Encoding = Encoding.NONE

    def compressed(self) -> Expected:
        """Raises ValueError where D did not allow it."""
        if not self.fp8_bytes:
            raise ValueError(f"not to be compressed: {self}")
        return replace(self, payload_bytes=self.fp8_bytes, encoding=Encoding.FP8)

    @property
    def message_bytes(self) -> int:
        return HEADER_BYTES + self.payload_bytes

    @property
    def end_block(self) -> int:
        return self.first_block + self.blocks

    @property
    def end_layer(self) -> int:
        return self.first_layer + self.layers


@dataclass(frozen=True, slots=True)
class Arrival:
    """What stands after the verdict means something only for an OK one."""

    verdict: Verdict
    index: int = 0
    early_bytes: int = NOT_YET
    encoding: Encoding = Encoding.NONE


LOST = Arrival(Verdict.LOST)
CORRUPT = Arrival(Verdict.CORRUPT)


Absorb = Callable[[Expected, Bytes], Sum]
"""Takes the payload of a message in, wherever it is wanted, and returns its sum."""


def payload_digest(total: Sum, transfer: int, index: int, early_bytes: int) -> int:
    mark = (transfer << INDEX_BITS) ^ index ^ ((early_bytes * 0x9E3779B97F4A7C15) & _U64)
    return xxhash.xxh3_64_intdigest(total, seed=mark & _U64)


def seal(message: Bytes, what: Expected, total: Sum, early_bytes: int = NOT_YET) -> None:
    """Writes the header before a payload that is in place and has this sum. `early_bytes`: payload
    of this request that had been sent when its prefill ended."""
    digest = payload_digest(total, what.transfer, what.index, early_bytes)
    _HEADER.pack_into(message.data, 0, *_data_fields(what), digest, early_bytes, 0)


def seal_void(message: Bytes, transfer: int, slot: int) -> None:
    """Writes a header-only message."""
    _HEADER.pack_into(message.data, 0, *_bare_fields(Flag.VOID, transfer, slot), 0)


def seal_lent(message: Bytes, transfer: int, slot: int, offset: int) -> None:
    """Writes a header-only message: what answers this slot begins at `offset` of the arena."""
    _HEADER.pack_into(message.data, 0, *_bare_fields(Flag.LENT, transfer, slot), offset)


def lent_at(message: Bytes, transfer: int, slot: int) -> int | None:
    """The offset that `seal_lent` wrote for this slot; None: this is no such message."""
    fields = _HEADER.unpack_from(message.data, 0)
    return fields[-1] if fields[:-1] == _bare_fields(Flag.LENT, transfer, slot) else None


def is_of(message: Bytes, transfer: int) -> bool:
    """Whether the header claims a message of this transfer."""
    fields = _HEADER.unpack_from(message.data, 0)
    return bool(fields[0] == MAGIC and fields[4] == transfer)


def judge(
    message: Bytes,
    transfer: int,
    slot: int,
    planned: Callable[[int], Expected | None],
    absorb: Absorb,
) -> Arrival:
    """What came on a slot of this transfer. `planned`: the message with an index, None when there
    is none. `absorb` is called if the header is right."""
    fields = _HEADER.unpack_from(message.data, 0)
    if fields == (*_bare_fields(Flag.VOID, transfer, slot), 0):
        return Arrival(Verdict.VOID)
    what = planned(fields[5])
    if what is not None and what.fp8_bytes and fields[3] == Encoding.FP8:
        what = what.compressed()
    digest, early_bytes, rest = fields[-3:]
    if what is None or fields[:-3] != _data_fields(what) or rest != 0:
        return CORRUPT
    payload = message[HEADER_BYTES : what.message_bytes]
    total = absorb(what, payload)
    if payload_digest(total, what.transfer, what.index, early_bytes) != digest:
        return CORRUPT
    return Arrival(Verdict.OK, what.index, early_bytes, what.encoding)


def _data_fields(what: Expected) -> tuple[object, ...]:
    return (
        MAGIC,
        VERSION,
        int(Flag.DATA),
        int(what.encoding),
        what.transfer,
        what.index,
        what.first_block,
        what.blocks,
        what.first_layer,
        what.layers,
        what.payload_bytes,
    )


def _bare_fields(flag: Flag, transfer: int, slot: int) -> tuple[object, ...]:
    """All but the last one."""
    return (MAGIC, VERSION, int(flag), 0, transfer, slot, 0, 0, 0, 0, 0, 0, NOT_YET)
