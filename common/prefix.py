"""Prefix hashes: a chain of hashes that names the beginning of a prompt, one per whole KV block.

The hash of a block is xxh3_64 over the hash before it, the block's token ids, and the images that
some of them stand for, so that equal hashes mean equal prompts up to there. The chain starts from
the tenant's cache salt and the id of the LoRA adapter, so that neither tenants nor adapters ever
share a hash. Gateways hash their prompts, workers hash what their engines hold, and the router
matches the two. The hashes serve placement only: a
collision, by chance or by malice, makes the router prefer a worker that holds nothing of the
prompt, and has no other effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import xxhash

from common.messages import ImageFeatures

HASH_BYTES = 8
HASHES_MAX = 512
TOKEN_BYTES = 4


def root(cache_salt: str | None, adapter: str = "") -> bytes:
    """The hash to which the first block's hash is chained."""
    salt = xxhash.xxh3_64_digest((cache_salt or "").encode(errors="surrogatepass"))
    return xxhash.xxh3_64_digest(salt + adapter.encode()) if adapter else salt


def chain(
    packed_ids: bytes | memoryview, block_tokens: int, before: bytes, keys: Sequence[bytes] = ()
) -> Iterator[bytes]:
    """Yields the hash of each whole block of `packed_ids` (uint32 little endian, as of
    `wire.pack_ids`), chained to the hash `before`. `keys`: of the blocks' images, the first blocks'
    first; blocks beyond have none."""
    step = block_tokens * TOKEN_BYTES
    for nth, start in enumerate(range(0, len(packed_ids) - step + 1, step)):
        key = keys[nth] if nth < len(keys) else b""
        before = xxhash.xxh3_64_digest(before + packed_ids[start : start + step] + key)
        yield before


def image_key(digest: str, offset: int) -> bytes:
    """Of an image in a block. `offset`: of its first token from the block's, negative if it began
    before."""
    return f"{digest}@{offset};".encode()


def prefix_hashes(
    packed_ids: bytes,
    block_tokens: int,
    cache_salt: str | None,
    images: Sequence[ImageFeatures] = (),
    adapter: str = "",
) -> bytes:
    """The hashes of a prompt's leading whole blocks, `HASH_BYTES` each, at most `HASHES_MAX`. Empty
    if `block_tokens` is 0, which means unknown."""
    if not block_tokens:
        return b""
    head = memoryview(packed_ids)[: HASHES_MAX * block_tokens * TOKEN_BYTES]
    keys = _block_keys(images, block_tokens)
    return b"".join(chain(head, block_tokens, root(cache_salt, adapter), keys))


def _block_keys(images: Sequence[ImageFeatures], block_tokens: int) -> list[bytes]:
    """One for each block up to the end of the last image, `HASHES_MAX` at most."""
    end = max((image.offset + image.length for image in images), default=0)
    keys = [b""] * min(-(-end // block_tokens), HASHES_MAX)
    for image in images:
        last = min(-(-(image.offset + image.length) // block_tokens), len(keys))
        for block in range(image.offset // block_tokens, last):
            keys[block] += image_key(image.digest, image.offset - block * block_tokens)
    return keys


def split(hashes: bytes) -> list[bytes]:
    """The single hashes; an incomplete last one is dropped."""
    whole = len(hashes) - len(hashes) % HASH_BYTES
    return [hashes[at : at + HASH_BYTES] for at in range(0, whole, HASH_BYTES)]


def prompt_digest(
    prompt_ids: bytes,
    cache_salt: str | None,
    images: Sequence[ImageFeatures] = (),
    adapter: str = "",
) -> bytes:
    """16 bytes that identify a whole packed prompt within its tenant and for its adapter."""
    keys = b"".join(image_key(image.digest, image.offset) for image in images)
    start = root(cache_salt, adapter)
    return hashlib.blake2b(start + prompt_ids + keys, digest_size=16).digest()
