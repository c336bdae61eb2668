"""Prefix hashes name a prompt's whole blocks, and nothing else."""

import struct

import xxhash

from common import prefix
from common.net.wire import pack_ids

IDS = list(range(100, 200))


def named(ids: list[int], block: int = 16, salt: str | None = None) -> list[bytes]:
    return prefix.split(prefix.prefix_hashes(pack_ids(ids), block, salt))


def test_the_hash_is_what_the_page_says() -> None:
    """Other implementations must be able to make it."""
    start = xxhash.xxh3_64_digest(b"tenant")
    first = xxhash.xxh3_64_digest(start + struct.pack("<16I", *IDS[:16]))
    second = xxhash.xxh3_64_digest(first + struct.pack("<16I", *IDS[16:32]))
    assert named(IDS, salt="tenant")[:2] == [first, second]


def test_whole_blocks_only() -> None:
    assert [len(named(IDS[:n])) for n in (0, 15, 16, 17, 31, 32, 100)] == [0, 0, 1, 1, 1, 2, 6]


def test_equal_up_to_the_first_difference_and_never_after() -> None:
    other = [*IDS]
    other[40] += 1
    pairs = list(zip(named(IDS), named(other), strict=True))
    assert [mine == theirs for mine, theirs in pairs] == [True, True, False, False, False, False]


def test_tenants_share_nothing() -> None:
    assert not set(named(IDS, salt="a")) & set(named(IDS, salt="b"))
    assert not set(named(IDS, salt="a")) & set(named(IDS))
    assert named(IDS, salt="") == named(IDS)


def test_a_chain_goes_on_from_any_block() -> None:
    names = named(IDS)
    rest = prefix.chain(pack_ids(IDS[32:]), 16, names[1])
    assert list(rest) == names[2:]


def test_bounds() -> None:
    assert len(named([7] * 4000, block=1)) == prefix.HASHES_MAX
    assert named(IDS, block=0) == []
    assert prefix.split(b"12345678abc") == [b"12345678"]
