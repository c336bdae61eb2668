"""The checksum and the header once more, in plain Python and from docs/kv-checksum.md alone.

Nothing here comes from the package. `python -m tests.unit.common.kv.checksum.reference` prints the
test vectors.
"""

from __future__ import annotations

import hashlib
import json

import xxhash

MASK = (1 << 64) - 1
NOT_YET = MASK
DIGEST_AT = 40
TRANSFER_KEY = bytes(range(32))

PAYLOADS: tuple[dict[str, object], ...] = (
    {"bytes": 0},
    {"hex": "00"},
    {"hex": "01"},
    {"hex": "000102030405060708"},
    {"bytes": 64},
    {"bytes": 255},
    {"bytes": 256},
    {"bytes": 257},
    {"bytes": 4096},
    {"bytes": 300_001},
)
MESSAGES: tuple[dict[str, int], ...] = (
    {"transfer": 1, "index": 0},
    {"transfer": 77, "index": 3, "early_bytes": 4096},
    {"transfer": MASK, "index": (1 << 20) - 1, "early_bytes": 0, "encoding": 1},
)


def payload(what: dict[str, object]) -> bytes:
    """`hex`: these bytes. `bytes`: so many, by the page's rule."""
    if "hex" in what:
        return bytes.fromhex(str(what["hex"]))
    length = int(str(what["bytes"]))
    return bytes((number * 167 + number // 256 * 13) % 256 for number in range(length))


def splitmix64(number: int) -> int:
    value = (number + 1) * 0x9E3779B97F4A7C15 & MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def checksum(data: bytes) -> bytes:
    """The 256 bytes of sums."""
    sums = [0] * 32
    data += bytes(-len(data) % 256)
    for at in range(0, len(data), 8):
        row, lane = divmod(at // 8, 32)
        value = int.from_bytes(data[at : at + 8], "little")
        key = (splitmix64(lane) + row * (splitmix64(32 + lane) | 1)) & MASK
        masked = value ^ key
        sums[lane] += (masked & 0xFFFFFFFF) * (masked >> 32)
        sums[(lane + 8) % 32] += value
    return b"".join((lane & MASK).to_bytes(8, "little") for lane in sums)


def digest(sums: bytes, transfer: int, index: int, early_bytes: int) -> int:
    seed = (transfer << 20) & MASK ^ index ^ (early_bytes * 0x9E3779B97F4A7C15 & MASK)
    return xxhash.xxh3_64_intdigest(sums, seed=seed)


def header(sums: bytes, payload_bytes: int, message: dict[str, int], key: bytes = b"") -> bytes:
    """Of a data message: blocks 12 and 13, layers 4 to 7. `key`: of the transfer, if it has one."""
    early_bytes = message.get("early_bytes", NOT_YET)
    fields = (
        (int.from_bytes(b"bKV1", "little"), 4),
        (3, 1),
        (1, 1),
        (message.get("encoding", 0), 2),
        (message["transfer"], 8),
        (message["index"], 4),
        (12, 4),
        (2, 4),
        (4, 2),
        (4, 2),
        (payload_bytes, 8),
        (digest(sums, message["transfer"], message["index"], early_bytes), 8),
        (early_bytes, 8),
        (0, 8),
    )
    made = b"".join(value.to_bytes(size, "little") for value, size in fields)
    if not key:
        return made
    blank = made[:DIGEST_AT] + bytes(8) + made[DIGEST_AT + 8 :]
    keyed = hashlib.blake2b(blank + sums, key=key, digest_size=8).digest()
    return made[:DIGEST_AT] + keyed + made[DIGEST_AT + 8 :]


def vectors() -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for number, what in enumerate(PAYLOADS):
        data, message = payload(what), MESSAGES[number % len(MESSAGES)]
        sums = checksum(data)
        made.append(
            {
                "payload": what,
                "sums": sums.hex(),
                "message": message,
                "header": header(sums, len(data), message).hex(),
                "keyed_header": header(sums, len(data), message, TRANSFER_KEY).hex(),
            }
        )
    return made


if __name__ == "__main__":
    print(json.dumps(vectors(), indent=1))
