"""How one block of KV lies in a segment file: a header, and the bytes that also travel on the wire.

Theory of operation: the header names the block and carries its digest, the one that the arena has.
A write that stopped half-way, a flipped bit, a record that was cut off, and a block that another
write was meant to replace all fail one of two comparisons: that of the header's own check, or that
of the digest with what was read. The header also names for whom the record was written: the
engine's fingerprint, the form of a block, and the rank. The time of the last use is rewritten in
place, so no check covers it; it decides how long a record is kept, and never what is served. In a
pool a header also has the name by which routers know the block, because no engine tells it again.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from common.kv.checksum.definition import Sum
from common.kv.store.recency import OWNER_BYTES
from common.kv.store.sealing import SEAL_BYTES
from common.kv.store.table import BlockName

MAGIC = b"BatonKV\x02"
"""The last byte is the version of the format. Bump it when anything here, or the digest, changes.
1: the first. 2: the name by which routers know the block,
and its owner."""
NAME_BYTES_MAX = 64
OURS_BYTES = 8
"""Of the name by which routers know a block; as `common.prefix.HASH_BYTES`."""
_CHECKED = struct.Struct(f"<8s16sII{NAME_BYTES_MAX}s16s{OURS_BYTES}s{OWNER_BYTES}s")
_REST = struct.Struct("<Qd")
HEADER_BYTES = _CHECKED.size + _REST.size
USED_AT = struct.Struct("<d")
USED_AT_OFFSET = HEADER_BYTES - USED_AT.size
PAGE_BYTES = 4096
"""Records begin at multiples of it."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a header says."""

    name: BlockName
    digest: bytes
    used_at: float
    """Unix time of the last use, in seconds."""
    ours: bytes = b""
    """The name by which routers know the block; empty: they know it by none."""
    owner: bytes = b""
    """Whose block it is (`recency.owner_of`)."""


def record_key(fingerprint: str, *form: object) -> bytes:
    """For whom records are: only those of an equal key are read. `form`: whatever else must be
    equal for the bytes of a block to mean the same."""
    text = "\0".join([fingerprint, *map(str, form)])
    return hashlib.sha256(text.encode()).digest()[:16]


def record_bytes(block_bytes: int) -> int:
    """From the beginning of a record to that of the next; it has room for two seals."""
    return -(-(HEADER_BYTES + block_bytes + 2 * SEAL_BYTES) // PAGE_BYTES) * PAGE_BYTES


def block_digest(name: BlockName, total: Sum) -> bytes:
    """`total`: the sum of the block's bytes."""
    return xxhash.xxh3_128_digest(total + name.block_hash, seed=name.group)


def encode(key: bytes, record: Record) -> bytes:
    """The header. Raises ValueError for a hash that is too long for it."""
    block_hash = record.name.block_hash
    if len(block_hash) > NAME_BYTES_MAX:
        raise ValueError(f"a block's hash of {len(block_hash)} bytes")
    checked = _CHECKED.pack(
        MAGIC,
        key,
        record.name.group,
        len(block_hash),
        block_hash,
        record.digest,
        record.ours,
        record.owner,
    )
    return checked + _REST.pack(xxhash.xxh3_64_intdigest(checked), record.used_at)


def decode(key: bytes, header: bytes) -> Record | None:
    """None if this is no undamaged header of this key."""
    if len(header) != HEADER_BYTES:
        return None
    checked = header[: _CHECKED.size]
    magic, whose, group, length, block_hash, digest, ours, owner = _CHECKED.unpack(checked)
    check, used_at = _REST.unpack_from(header, _CHECKED.size)
    if magic != MAGIC or whose != key or check != xxhash.xxh3_64_intdigest(checked):
        return None
    ours, owner = (text if any(text) else b"" for text in (ours, owner))
    return Record(BlockName(group, block_hash[:length]), digest, used_at, ours, owner)


class Spill(NamedTuple):
    """One copy from the arena to the disk."""

    slot: int
    """In the arena."""
    disk_slot: int
    name: BlockName
    ours: bytes = b""
    owner: bytes = b""
    """As in `Record`, as is `ours`."""
