"""Prefix hashes name a prompt's whole blocks, and nothing else."""

import struct

import xxhash

from common import prefix
from common.messages import ImageFeatures
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


def with_image(digest: str, offset: int, length: int) -> list[bytes]:
    image = ImageFeatures(digest=digest, offset=offset, length=length, data=b"")
    return prefix.split(prefix.prefix_hashes(pack_ids(IDS), 16, None, [image]))


def test_images_are_told_apart_from_the_block_on_in_which_they_begin() -> None:
    names = with_image("aa", 20, 8)
    assert names[0] == named(IDS)[0]
    for other in (named(IDS), with_image("bb", 20, 8), with_image("aa", 21, 8)):
        assert other[0] == names[0]
        assert not set(other[1:]) & set(names[1:])
    assert with_image("aa", 20, 8) == names


def test_an_image_is_in_all_its_blocks_and_in_no_other() -> None:
    """The block after it is chained to those before, and has no key itself."""
    rest = prefix.chain(pack_ids(IDS[48:]), 16, with_image("aa", 20, 28)[2])
    assert list(rest) == with_image("aa", 20, 28)[3:]
    longer = with_image("aa", 20, 29)
    assert longer[:3] == with_image("aa", 20, 28)[:3]
    assert longer[3] != with_image("aa", 20, 28)[3]


def test_a_prompt_is_told_by_its_images() -> None:
    images = [ImageFeatures(digest=name, offset=3, length=4, data=b"") for name in ("a", "b")]
    digests = [prefix.prompt_digest(b"ids", None, [image]) for image in images]
    assert len({*digests, prefix.prompt_digest(b"ids", None)}) == 3


def test_bounds() -> None:
    assert len(with_image("aa", 2**50, 2**50)) == 6
    assert len(named([7] * 4000, block=1)) == prefix.HASHES_MAX
    assert named(IDS, block=0) == []
    assert prefix.split(b"12345678abc") == [b"12345678"]


def test_adapters_share_nothing_with_each_other_or_with_the_model() -> None:
    packed = pack_ids(IDS)
    found = [
        prefix.split(prefix.prefix_hashes(packed, 16, salt, (), adapter))
        for salt in ("a", None)
        for adapter in ("", "sql@1", "sql@2")
    ]
    assert len({one for hashes in found for one in hashes}) == sum(map(len, found))
    digests = {prefix.prompt_digest(packed, "a", (), one) for one in ("", "sql@1", "sql@2")}
    assert len(digests) == 3
