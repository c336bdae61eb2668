"""Common prefixes of prompts, and the hashes of their KV blocks.

A prompt is a sequence of parts; a part's id identifies the text up to its end. A KV block is named
by the part that its last token lies in and by its place, which is the same for all prompts that are
alike up to there. Names are made when a request is submitted and go with it: a trace keeps parts,
of which it has few, and no blocks, of which it has many.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

import xxhash

from loadtest.bench.request_specs import Piece

LENGTH = Struct("<Q")
PLACE = Struct("<QQ")


class Part(NamedTuple):
    """A piece of a prompt together with all that precedes it."""

    #: Unsigned 64 bits, equal if and only if the prompts are equal up to the end of this part.
    id: int
    tokens: int


def chained(pieces: Iterable[Piece]) -> tuple[Part, ...]:
    """Converts pieces to parts. The id of a part covers all pieces before it."""
    parts, before = [], b""
    for piece in pieces:
        before = xxhash.xxh3_64_digest(before + LENGTH.pack(piece.tokens) + piece.seed.encode())
        parts.append(Part(int.from_bytes(before, "big"), piece.tokens))
    return tuple(parts)


def block_hashes(parts: Iterable[Part], block_tokens: int) -> bytes:
    """Of a prompt's leading whole blocks, `common.prefix.HASH_BYTES` each."""
    hashes: list[bytes] = []
    end = 0
    for part in parts:
        end += part.tokens
        whole = range(len(hashes), end // block_tokens)
        hashes += [xxhash.xxh3_64_digest(PLACE.pack(part.id, place)) for place in whole]
    return b"".join(hashes)
