"""Bends a frame: bits, lengths, cuts, splices, nests. Seeded."""

from __future__ import annotations

import random
from collections.abc import Sequence

# Heads of MessagePack items that promise more than follows: str 32, bin 32, array 32, map 32, ext.
HEADS = (b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff",
         b"\xdf\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xd6\xff", b"\xc1", b"\xc0",
         b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xcf" + b"\xff" * 8, b"\x81", b"\x9f", b"\x80")  # fmt: skip
NESTS = (b"\x91" * 2_000, b"\x81\xa1a" * 700, b"\xdd\0\0\0\1" * 400)


def bent(rng: random.Random, frame: bytes, others: Sequence[bytes]) -> bytes:
    """One to three changes; now and then a frame comes through as it is."""
    data = bytearray(frame)
    for _ in range(rng.randrange(4)):
        size = len(data)
        at = rng.randrange(size) if size else 0
        how = rng.random()
        if how < 0.35 and size:
            data[at] ^= 1 << rng.randrange(8)
        elif how < 0.55 and size:
            data[at] = rng.randrange(256)
        elif how < 0.65:
            del data[at:]
        elif how < 0.75:
            data[at:at] = rng.choice(HEADS)
        elif how < 0.85:
            other = rng.choice(others)
            data[at:] = other[rng.randrange(len(other) + 1) :]
        elif how < 0.92:
            del data[at : at + rng.randrange(1, 9)]
        elif how < 0.99:
            data[at:at] = data[at : at + rng.randrange(1, 40)]
        else:
            data[at:at] = rng.choice(NESTS)
    return bytes(data)
