"""The canonical form: what each byte of it is, whatever the layout of the memory that it is of."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from common.kv.canonical import CanonicalMemory, HeadMajorPage
from common.kv.checksum.kernel import sum_of
from common.kv.layout import Geometry, HostMemory

LAYERS, HEADS, ITEMS, SEQUENCE = 3, 2, 5, 256
FORMS = {2: "<H", 4: "<I"}
Memory = tuple[np.ndarray, CanonicalMemory]


def memory(tokens: int, item_bytes: int, fill: int = 0) -> Memory:
    """Of two sequences, with a gap after each page and some bytes before the first."""
    page = HeadMajorPage(HEADS, tokens, ITEMS, item_bytes)
    blocks, size = 2 * SEQUENCE // tokens, page.page_bytes
    step = size + 4 * item_bytes
    geometry = Geometry(LAYERS, blocks, size, blocks * step + 8, step, offset=16)
    base = np.full(geometry.end + 12, fill, np.uint8)
    return base, CanonicalMemory(HostMemory(base, geometry), page)


def value(layer: int, token: int, head: int, which: int, item: int) -> int:
    """Of K (`which` 0) or V of one token, unlike that of any other place."""
    at = (((layer * SEQUENCE + token) * HEADS + head) * 2 + which) * ITEMS + item
    return at * 2 + 1


def write(memory: Memory, tokens: int, item_bytes: int, own_blocks: list[int]) -> None:
    """One sequence into these blocks, item by item, as vLLM's kernels for CPUs do."""
    base, _ = memory
    step = HEADS * tokens * 2 * ITEMS * item_bytes + 4 * item_bytes
    layer_stride = (2 * SEQUENCE // tokens) * step + 8
    for layer in range(LAYERS):
        for token in range(SEQUENCE):
            block, inside = own_blocks[token // tokens], token % tokens
            for head in range(HEADS):
                start = 16 + layer * layer_stride + block * step
                start += head * 2 * tokens * ITEMS * item_bytes
                for item in range(ITEMS):
                    key = start + (item * tokens + inside) * item_bytes
                    other = start + (tokens * ITEMS + inside * ITEMS + item) * item_bytes
                    for which, at in enumerate((key, other)):
                        number = value(layer, token, head, which, item)
                        struct.pack_into(FORMS[item_bytes], base, at, number)


def expected(item_bytes: int, layers: range, numbers: list[int]) -> bytes:
    """The definition: canonical blocks of these numbers of the sequence, in wire order."""
    return b"".join(
        struct.pack(FORMS[item_bytes], value(layer, 16 * number + token, head, which, item))
        for layer in layers
        for number in numbers
        for head in range(HEADS)
        for token in range(16)
        for which in (0, 1)
        for item in range(ITEMS)
    )


def canonical_ids(own_blocks: list[int], tokens: int) -> list[int]:
    return [block * (tokens // 16) + part for block in own_blocks for part in range(tokens // 16)]


def scattered(tokens: int, seed: int) -> list[int]:
    """Blocks for one sequence, in no order."""
    return random.Random(seed).sample(range(2 * SEQUENCE // tokens), SEQUENCE // tokens)


@pytest.mark.parametrize("tokens", [16, 32, 64, 128])
@pytest.mark.parametrize("item_bytes", [2, 4])
@pytest.mark.parametrize(
    "numbers", [list(range(16)), [0], [7], [3, 4, 5, 6, 7, 8], [15, 2, 9, 8, 3]]
)
def test_each_item_is_where_the_definition_has_it(
    tokens: int, item_bytes: int, numbers: list[int]
) -> None:
    own_blocks = scattered(tokens, tokens)
    source = memory(tokens, item_bytes)
    write(source, tokens, item_bytes, own_blocks)
    ids = [canonical_ids(own_blocks, tokens)[number] for number in numbers]
    for layers in (range(LAYERS), range(1, 3)):
        due = expected(item_bytes, layers, numbers)
        wire = np.zeros(len(due), np.uint8)
        total = source[1].gather(ids, wire, layers)
        assert wire.tobytes() == due
        assert total == sum_of(wire)


@pytest.mark.parametrize("ours", [16, 32, 64, 128])
@pytest.mark.parametrize("theirs", [16, 32, 64, 128])
def test_what_one_layout_gives_another_takes(ours: int, theirs: int) -> None:
    """All of the sequence, in two messages that cut blocks of both; and no other byte changes."""
    source, target = memory(ours, 4), memory(theirs, 4, fill=0xEE)
    from_blocks, to_blocks = scattered(ours, 1), scattered(theirs, 2)
    write(source, ours, 4, from_blocks)
    from_ids, to_ids = canonical_ids(from_blocks, ours), canonical_ids(to_blocks, theirs)
    for part in (slice(0, 5), slice(5, 16)):
        wire = np.zeros(len(from_ids[part]) * source[1].geometry.block_bytes, np.uint8)
        sent = source[1].gather(from_ids[part], wire)
        assert target[1].scatter(to_ids[part], wire) == sent
    due = memory(theirs, 4, fill=0xEE)
    write(due, theirs, 4, to_blocks)
    assert (target[0] == due[0]).all()


def test_a_page_of_other_sizes_has_no_canonical_form() -> None:
    for tokens, item_bytes in ((24, 4), (8, 4), (32, 1)):
        page = HeadMajorPage(HEADS, tokens, ITEMS, item_bytes)
        size = page.page_bytes
        host = HostMemory(np.zeros(size, np.uint8), Geometry(1, 1, size, size, size))
        with pytest.raises(ValueError, match="no canonical form"):
            CanonicalMemory(host, page)
    size = HeadMajorPage(HEADS, 32, ITEMS, 4).page_bytes
    host = HostMemory(np.zeros(size, np.uint8), Geometry(1, 1, size, size, size))
    with pytest.raises(ValueError, match="no canonical form"):
        CanonicalMemory(host, HeadMajorPage(HEADS, 16, ITEMS, 4))


def test_what_is_not_there_is_refused() -> None:
    _, held = memory(32, 4)
    one = held.geometry.block_bytes
    with pytest.raises(ValueError, match="outside"):
        held.gather([held.geometry.blocks], np.zeros(one, np.uint8))
    with pytest.raises(ValueError, match="outside"):
        held.scatter([-1], np.zeros(one, np.uint8))
    with pytest.raises(ValueError, match="contiguous bytes"):
        held.gather([0], np.zeros(one + 4, np.uint8))
    with pytest.raises(ValueError, match="once"):
        held.scatter([3, 3], np.zeros(2 * one, np.uint8))
