"""The 64 bytes before every KV payload, and the digest that decides whether it may be used.

Theory of operation: the receiver knows the transfer's plan, so it knows what every message must
be; a header only claims which message this is. A message is accepted if its header says exactly
what the plan has at that index and its digest is the header's. The digest is xxh3_64 of the
payload's `Sum`, seeded by transfer, index and `early_bytes`: because of the seed, a payload that
belongs elsewhere fails as a damaged one does. Where workers authenticate each other the digest is
a keyed BLAKE2b of the header and the `Sum` instead, under a key of the transfer on its link, and a
header without payload has one, too. `docs/kv-checksum.md` defines every byte.

What arrives is what a peer or a wire made of it, so a wrong message yields a verdict and never an
exception. The sum comes with the copy of the payload (`kernel.py`), so `verify_message` is given
the function that copies.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from common.kv.checksum.definition import Bytes, Sum

HEADER_BYTES = 64
MAGIC = b"bKV1"
VERSION = 3
INDEX_BITS = 20
INDEX_MAX = 1 << INDEX_BITS
NOT_YET = (1 << 64) - 1
"""The `early_bytes` of a message that was sent before its prefill ended."""
_HEADER = struct.Struct("<4sBBHQIIIHHQQQQ")
assert _HEADER.size == HEADER_BYTES
_U64 = (1 << 64) - 1


class Flag(enum.IntEnum):
    """What stands behind a header."""

    DATA = 1
    """A payload follows."""
    VOID = 2
    """The sender answers a granted slot without data, because it gave the transfer up."""
    LOAN = 3
    """The message lies in the sender's staging memory."""


class Encoding(enum.IntEnum):
    """What was done to the payload before its digest was taken."""

    NONE = 0
    FP8 = 1


class Verdict(enum.Enum):
    """What an arrived message is worth."""

    OK = "ok"
    VOID = "void"
    CORRUPT = "corrupt"
    LOST = "lost"
    """The transport failed and nothing arrived."""


@dataclass(frozen=True, slots=True)
class ExpectedMessage:
    """One message as both sides compute it."""

    transfer: int
    index: int
    first_block: int
    """Blocks count within the prompt, from 0."""
    blocks: int
    first_layer: int
    layers: int
    payload_bytes: int
    fp8_bytes: int = 0
    """The size of its payload if it is compressed; 0 if it must not be."""
    encoding: Encoding = Encoding.NONE

    def compressed(self) -> ExpectedMessage:
        """This message with an fp8 payload. Raises ValueError where D did not allow it."""
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
    """An arrived message. The fields after `verdict` mean something only if that is OK."""

    verdict: Verdict
    index: int = 0
    early_bytes: int = NOT_YET
    encoding: Encoding = Encoding.NONE


LOST = Arrival(Verdict.LOST)
CORRUPT = Arrival(Verdict.CORRUPT)


CopyIn = Callable[[ExpectedMessage, Bytes], Sum]
"""Copies the payload of a message to where it is wanted and returns its sum."""


def payload_digest(total: Sum, transfer: int, index: int, early_bytes: int) -> int:
    """The digest where workers do not authenticate each other."""
    mark = (transfer << INDEX_BITS) ^ index ^ ((early_bytes * 0x9E3779B97F4A7C15) & _U64)
    return xxhash.xxh3_64_intdigest(total, seed=mark & _U64)


def write_header(
    message: Bytes,
    expected: ExpectedMessage,
    total: Sum,
    early_bytes: int = NOT_YET,
    *,
    key: bytes = b"",
) -> None:
    """Writes the header before a payload that is in place and has this sum.

    `early_bytes`: bytes of this request's payloads that had been sent when its prefill ended.
    `key`: of the transfer; empty where workers do not authenticate each other, here as below."""
    fields = _data_fields(expected)
    digest = _data_digest(fields, total, early_bytes, key)
    _HEADER.pack_into(message.data, 0, *fields, digest, early_bytes, 0)


def write_void(message: Bytes, transfer: int, slot: int, *, key: bytes = b"") -> None:
    """Writes a header-only message."""
    _HEADER.pack_into(message.data, 0, *_bare_fields(Flag.VOID, transfer, slot, 0, key))


def write_loan(message: Bytes, transfer: int, slot: int, offset: int, *, key: bytes = b"") -> None:
    """Writes a header-only message: the answer to this slot begins at `offset` of the sender's
    shared segment."""
    _HEADER.pack_into(message.data, 0, *_bare_fields(Flag.LOAN, transfer, slot, offset, key))


def loan_offset(message: Bytes, transfer: int, slot: int, *, key: bytes = b"") -> int | None:
    """The offset that `write_loan` wrote for this slot; None if this is no such message."""
    fields = _HEADER.unpack_from(message.data, 0)
    offset: int = fields[-1]
    if fields[2] != Flag.LOAN or fields != _bare_fields(Flag.LOAN, transfer, slot, offset, key):
        return None
    return offset


def has_transfer(message: Bytes, transfer: int) -> bool:
    """Whether the header claims a message of this transfer."""
    fields = _HEADER.unpack_from(message.data, 0)
    return bool(fields[0] == MAGIC and fields[4] == transfer)


def verify_message(
    message: Bytes,
    transfer: int,
    slot: int,
    planned: Callable[[int], ExpectedMessage | None],
    copy_in: CopyIn,
    *,
    key: bytes = b"",
) -> Arrival:
    """Verifies what came on a slot of this transfer.

    `planned` returns the planned message with an index, or None. `copy_in` is called only if the
    header is right, and before the digest is known."""
    claim = claim_of(message, transfer, slot, planned, key=key)
    if isinstance(claim, Arrival):
        return claim
    payload = message[HEADER_BYTES : claim.expected.message_bytes]
    return claim.judge(copy_in(claim.expected, payload))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a right header says of its payload, which nobody has looked at."""

    expected: ExpectedMessage
    early_bytes: int
    digest: int
    key: bytes

    def judge(self, total: Sum) -> Arrival:
        """`total`: of the payload."""
        fields = _data_fields(self.expected)
        if _data_digest(fields, total, self.early_bytes, self.key) != self.digest:
            return CORRUPT
        return Arrival(Verdict.OK, self.expected.index, self.early_bytes, self.expected.encoding)


def claim_of(
    header: Bytes,
    transfer: int,
    slot: int,
    planned: Callable[[int], ExpectedMessage | None],
    *,
    key: bytes = b"",
) -> Claim | Arrival:
    """What came on a slot of this transfer: a claim, or what the header alone decides. `planned`
    and `key` as above."""
    fields = _HEADER.unpack_from(header.data, 0)
    if fields[2] == Flag.VOID and fields == _bare_fields(Flag.VOID, transfer, slot, 0, key):
        return Arrival(Verdict.VOID)
    expected = planned(fields[5])
    if expected is not None and expected.fp8_bytes and fields[3] == Encoding.FP8:
        expected = expected.compressed()
    digest, early_bytes, rest = fields[-3:]
    if expected is None or fields[:-3] != _data_fields(expected) or rest != 0:
        return CORRUPT
    return Claim(expected, early_bytes, digest, key)


def _data_digest(fields: tuple[Any, ...], total: Sum, early_bytes: int, key: bytes) -> int:
    """`fields`: as `_data_fields` returns them."""
    if not key:
        transfer, index = fields[4:6]
        return payload_digest(total, transfer, index, early_bytes)
    return _keyed(key, (*fields, 0, early_bytes, 0), total)


def _keyed(key: bytes, fields: tuple[Any, ...], total: Sum = b"") -> int:
    """`fields`: all of the header, the digest 0."""
    digest = hashlib.blake2b(_HEADER.pack(*fields) + total, key=key, digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _data_fields(expected: ExpectedMessage) -> tuple[Any, ...]:
    """The fields of the header before a payload, up to the digest."""
    return (
        MAGIC,
        VERSION,
        int(Flag.DATA),
        int(expected.encoding),
        expected.transfer,
        expected.index,
        expected.first_block,
        expected.blocks,
        expected.first_layer,
        expected.layers,
        expected.payload_bytes,
    )


def _bare_fields(
    flag: Flag, transfer: int, slot: int, offset: int, key: bytes
) -> tuple[object, ...]:
    """All fields of a header without payload."""
    fields = (MAGIC, VERSION, int(flag), 0, transfer, slot, 0, 0, 0, 0, 0)
    digest = _keyed(key, (*fields, 0, NOT_YET, offset)) if key else 0
    return (*fields, digest, NOT_YET, offset)
