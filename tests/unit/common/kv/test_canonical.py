"""The canonical form: what each byte of it is, whatever the layout of the memory that it is of."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from common.blocks import ELEMENT_BYTES, Element
from common.kv.canonical import CanonicalMemory, HeadMajorPage
from common.kv.checksum import kernel
from common.kv.checksum.definition import PageSizes
from common.kv.checksum.kernel import sum_of
from common.kv.compression.elements import STORED, converted, widened
from common.kv.layout import Geometry, HostMemory

LAYERS, HEADS, SEQUENCE = 2, 2, 128
COMPILED, PORTABLE = 32, 5
"""Items of a head with which the loops are compiled, and with which numpy does their work."""
FORMS = {2: "<H", 4: "<I"}
Memory = tuple[np.ndarray, CanonicalMemory]


def memory(
    tokens: int, item_bytes: int, items: int, fill: int = 0, *, paired: bool = False
) -> Memory:
    """Of two sequences, with a gap after each page and some bytes before the first."""
    page = HeadMajorPage(HEADS, tokens, items, item_bytes, paired)
    blocks, size = 2 * SEQUENCE // tokens, page.page_bytes
    step = size + 4 * item_bytes
    geometry = Geometry(LAYERS, blocks, size, blocks * step + 8, step, offset=16)
    base = np.full(geometry.end + 12, fill, np.uint8)
    return base, CanonicalMemory(HostMemory(base, geometry), page)


def value(layer: int, token: int, head: int, which: int, item: int, item_bytes: int) -> int:
    """Of K (`which` 0) or V of one token, unlike that of any other place near it."""
    at = (((layer * SEQUENCE + token) * HEADS + head) * 2 + which) * COMPILED + item
    return (at * 2_654_435_761 + 1) >> (16 if item_bytes == 2 else 0) & ((1 << 8 * item_bytes) - 1)


def transposed(token: int, item: int, tokens: int, items: int) -> tuple[int, int]:
    """Where the K and the V of an item is, among the K and the V of its head."""
    return item * tokens + token, token * items + item


def in_tiles(token: int, item: int, tokens: int, items: int) -> tuple[int, int]:
    """As `transposed`, of a page for AMX."""
    key = ((token // 16 * (items // 2) + item // 2) * 16 + token % 16) * 2 + item % 2
    other = ((item // 16 * (tokens // 2) + token // 2) * 16 + item % 16) * 2 + token % 2
    return key, other


def write(
    memory: Memory,
    tokens: int,
    item_bytes: int,
    items: int,
    own_blocks: list[int],
    order: Callable[[int, int, int, int], tuple[int, int]] = transposed,
) -> None:
    """One sequence into these blocks, item by item, as vLLM's kernels for CPUs do."""
    base, _ = memory
    step = HEADS * tokens * 2 * items * item_bytes + 4 * item_bytes
    layer_stride = (2 * SEQUENCE // tokens) * step + 8
    for layer in range(LAYERS):
        for token in range(SEQUENCE):
            block, inside = own_blocks[token // tokens], token % tokens
            for head in range(HEADS):
                start = 16 + layer * layer_stride + block * step
                start += head * 2 * tokens * items * item_bytes
                for item in range(items):
                    for which, place in enumerate(order(inside, item, tokens, items)):
                        at = start + (which * tokens * items + place) * item_bytes
                        number = value(layer, token, head, which, item, item_bytes)
                        struct.pack_into(FORMS[item_bytes], base.data, at, number)


def expected(item_bytes: int, items: int, layers: range, numbers: list[int]) -> bytes:
    """The definition: canonical blocks of these numbers of the sequence, in wire order."""
    return b"".join(
        struct.pack(
            FORMS[item_bytes], value(layer, 16 * number + token, head, which, item, item_bytes)
        )
        for layer in layers
        for number in numbers
        for head in range(HEADS)
        for token in range(16)
        for which in (0, 1)
        for item in range(items)
    )


def canonical_ids(own_blocks: list[int], tokens: int) -> list[int]:
    return [block * (tokens // 16) + part for block in own_blocks for part in range(tokens // 16)]


def scattered(tokens: int, seed: int) -> list[int]:
    """Blocks for one sequence, in no order."""
    return random.Random(seed).sample(range(2 * SEQUENCE // tokens), SEQUENCE // tokens)


NUMBERS = [list(range(8)), [5], [7, 2, 1, 0, 3, 4]]


@pytest.mark.parametrize("tokens", [16, 32, 64, 128])
@pytest.mark.parametrize("item_bytes", [2, 4])
@pytest.mark.parametrize("items", [COMPILED, PORTABLE])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_each_item_is_where_the_definition_has_it(
    tokens: int, item_bytes: int, items: int, numbers: list[int]
) -> None:
    own_blocks = scattered(tokens, tokens)
    source = memory(tokens, item_bytes, items)
    write(source, tokens, item_bytes, items, own_blocks)
    ids = [canonical_ids(own_blocks, tokens)[number] for number in numbers]
    for layers in (range(LAYERS), range(1, 2)):
        due = expected(item_bytes, items, layers, numbers)
        wire = np.zeros(len(due), np.uint8)
        total = source[1].gather(ids, wire, layers)
        assert wire.tobytes() == due
        assert total == sum_of(wire)


@pytest.mark.parametrize("tokens", [32, 128])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_each_item_of_a_page_for_amx_is_where_the_definition_has_it(
    tokens: int, numbers: list[int]
) -> None:
    """And comes to its place in another such page, with no other byte changed."""
    own_blocks = scattered(tokens, tokens)
    source, target = (memory(tokens, 2, COMPILED, 0xEE, paired=True) for _ in range(2))
    write(source, tokens, 2, COMPILED, own_blocks, in_tiles)
    every = canonical_ids(own_blocks, tokens)
    ids = [every[number] for number in numbers]
    for layers in (range(LAYERS), range(1, 2)):
        due = expected(2, COMPILED, layers, numbers)
        wire = np.zeros(len(due), np.uint8)
        assert source[1].gather(ids, wire, layers) == sum_of(wire)
        assert wire.tobytes() == due
    for some in (ids, [number for number in every if number not in ids]):
        wire = np.zeros(len(some) * source[1].geometry.block_bytes, np.uint8)
        assert source[1].gather(some, wire) == target[1].scatter(some, wire)
    assert (target[0] == source[0]).all()


@pytest.mark.parametrize("convert", [None, ("bfloat16", "float16")])
def test_hosts_with_amx_and_without_take_each_others(
    convert: tuple[Element, Element] | None,
) -> None:
    """Whole blocks and a part of the heads, in the element type of the pages or in another."""
    made = []
    for paired, order in ((False, transposed), (True, in_tiles)):
        held = memory(64, 2, COMPILED, paired=paired)
        write(held, 64, 2, COMPILED, [0, 1], order)
        page = HeadMajorPage(HEADS, 64, COMPILED, 2, paired)
        made.append(CanonicalMemory(held[1]._memory, page, convert))
    ids = [5, 2, 3, 0]
    for plain, tiled in (made, [one.part(1, HEADS) for one in made]):
        wires = [np.zeros(len(ids) * one.geometry.block_bytes, np.uint8) for one in (plain, tiled)]
        assert plain.gather(ids, wires[0]) == tiled.gather(ids, wires[1])
        assert (wires[0] == wires[1]).all()
        sent = np.roll(wires[0], len(wires[0]) // 2)
        for source, target in ((plain, tiled), (tiled, plain)):
            source.scatter(ids, sent)
            assert target.scatter(ids, sent) == source.gather(ids, wires[0]) == sum_of(wires[0])
            assert target.gather(ids, wires[1]) == sum_of(sent)


@pytest.mark.parametrize("ours", [16, 32, 64, 128])
@pytest.mark.parametrize("theirs", [16, 32, 64, 128])
@pytest.mark.parametrize("items", [COMPILED, PORTABLE])
def test_what_one_layout_gives_another_takes(ours: int, theirs: int, items: int) -> None:
    """All of the sequence, in two messages that cut blocks of both; and no other byte changes."""
    source, target = memory(ours, 4, items), memory(theirs, 4, items, fill=0xEE)
    from_blocks, to_blocks = scattered(ours, 1), scattered(theirs, 2)
    write(source, ours, 4, items, from_blocks)
    from_ids, to_ids = canonical_ids(from_blocks, ours), canonical_ids(to_blocks, theirs)
    for part in (slice(0, 5), slice(5, 8)):
        wire = np.zeros(len(from_ids[part]) * source[1].geometry.block_bytes, np.uint8)
        sent = source[1].gather(from_ids[part], wire)
        assert target[1].scatter(to_ids[part], wire) == sent
    due = memory(theirs, 4, items, fill=0xEE)
    write(due, theirs, 4, items, to_blocks)
    assert (target[0] == due[0]).all()


def test_the_loops_are_compiled_where_they_fit_and_are_not_where_they_must_not_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both give the same bytes and sum."""
    assert kernel.tile_loops(PageSizes(64, PORTABLE, 4), on_lines=True) is None
    source = memory(64, 4, COMPILED)
    source[0][:] = np.random.default_rng(1).integers(0, 256, len(source[0]), dtype=np.uint8)
    one = source[1].geometry.block_bytes
    ids = [5, 2, 3, 0]
    made, plain = np.zeros(len(ids) * one, np.uint8), np.zeros(len(ids) * one, np.uint8)
    assert source[1]._loops is not None
    total = source[1].gather(ids, made)
    monkeypatch.setattr(source[1], "_loops", None)
    assert source[1].gather(ids, plain) == total
    assert (made == plain).all()


@pytest.mark.parametrize("tokens", [16, 32, 48, 128])
@pytest.mark.parametrize("item_bytes", [2, 4])
@pytest.mark.parametrize("offset", [0, 4])
def test_compiled_loops_and_numpy_agree_wherever_runs_begin_and_end(
    tokens: int, item_bytes: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tiles of one line are done at once, in both directions, and no other byte changes."""
    page = HeadMajorPage(HEADS, tokens, COMPILED, item_bytes)
    size, in_one = page.page_bytes, tokens // 16
    dice = np.random.default_rng(tokens)
    whole = np.zeros(2 * 4 * size + 64 + offset, np.uint8)
    base = whole[-whole.ctypes.data % 64 + offset :][: 8 * size]
    base[:] = dice.integers(0, 256, len(base), dtype=np.uint8)
    held = CanonicalMemory(HostMemory(base, Geometry(2, 4, size, 4 * size, size)), page)
    assert held._loops is not None
    every = list(range(4 * in_one))
    for ids in (every, every[1:], every[:-1], [3 * in_one, *every[: in_one + 1]], [], [1]):
        results = []
        for loops in (held._loops, None):
            with monkeypatch.context() as patch:
                patch.setattr(held, "_loops", loops)
                out = np.zeros(len(ids) * held.geometry.block_bytes, np.uint8)
                before, total = base.copy(), held.gather(ids, out)
                assert total == sum_of(out)
                sent = np.random.default_rng(len(ids)).permutation(out)
                assert held.scatter(ids, sent) == sum_of(sent)
                results.append((out, base.copy()))
                base[:] = before
        assert (results[0][0] == results[1][0]).all()
        assert (results[0][1] == results[1][1]).all()


PAIRS = [(own, wire) for own in get_args(Element) for wire in get_args(Element) if own != wire]


@pytest.mark.parametrize("convert", PAIRS)
@pytest.mark.parametrize("offset", [0, 4])
def test_items_are_converted_in_the_same_pass(
    convert: tuple[Element, Element], offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the compiled loops as by numpy, NaN and infinities too, whether pages begin on lines."""
    own, wire = convert
    page = HeadMajorPage(HEADS, 32, COMPILED, ELEMENT_BYTES[own])
    size, ids = page.page_bytes, [5, 2, 3, 0]
    dice = np.random.default_rng(1)
    whole = np.zeros(3 * size + 64 + offset, np.uint8)
    base = whole[-whole.ctypes.data % 64 + offset :][: 3 * size]
    base[:] = dice.integers(0, 256, len(base), dtype=np.uint8)
    host = HostMemory(base, Geometry(1, 3, size, 3 * size, size))
    plain, held = CanonicalMemory(host, page), CanonicalMemory(host, page, convert)
    assert held._loops is not None
    kept = np.zeros(len(ids) * plain.geometry.block_bytes, np.uint8)
    plain.gather(ids, kept)
    bits = {2: np.uint16, 4: np.uint32}
    due = converted(kept.view(bits[ELEMENT_BYTES[own]]), own, wire).view(np.uint8)
    got = np.zeros(len(ids) * held.geometry.block_bytes, np.uint8)
    assert held.gather(ids, got) == sum_of(got)
    assert _same(got, due, wire)

    sent = dice.integers(0, 256, len(got), dtype=np.uint8)
    before = base.copy()
    assert held.scatter(ids, sent) == sum_of(sent)
    compiled = base.copy()
    monkeypatch.setattr(held, "_loops", None)
    base[:] = before
    held.scatter(ids, sent)
    assert _same(compiled, base, own)
    assert (compiled != before).any()
    back = np.zeros(len(kept), np.uint8)
    plain.gather(ids, back)
    wanted = converted(sent.view(bits[ELEMENT_BYTES[wire]]), wire, own).view(np.uint8)
    assert _same(back, wanted, own)


def _same(ours: np.ndarray, theirs: np.ndarray, element: Element) -> bool:
    """The same bits, or NaN in the same places."""
    left, right = (widened(bits.view(STORED[element]), element) for bits in (ours, theirs))
    with np.errstate(invalid="ignore"):
        numbers = np.where(np.isnan(left), 0, left) == np.where(np.isnan(right), 0, right)
    return bool(numbers.all()) and bool((np.isnan(left) == np.isnan(right)).all())


def test_a_page_of_another_element_type_is_refused() -> None:
    page = HeadMajorPage(HEADS, 32, COMPILED, 4)
    size = page.page_bytes
    host = HostMemory(np.zeros(size, np.uint8), Geometry(1, 1, size, size, size))
    with pytest.raises(ValueError, match="items of 4 bytes are not bfloat16"):
        CanonicalMemory(host, page, ("bfloat16", "float32"))


def test_whole_lines_are_written_past_the_caches_only_where_pages_begin_on_lines() -> None:
    """A store past the caches to another place would end the process."""
    size = HeadMajorPage(HEADS, 32, COMPILED, 4).page_bytes
    whole = np.zeros(3 * size, np.uint8)
    for offset in (0, 4, 32):
        base = whole[-whole.ctypes.data % 64 + offset :]
        host = HostMemory(base[:size], Geometry(1, 1, size, size, size))
        assert host.on_lines is (offset == 0)
        held = CanonicalMemory(host, HeadMajorPage(HEADS, 32, COMPILED, 4))
        wire = np.random.default_rng(offset).integers(0, 256, size, dtype=np.uint8)
        back = np.zeros(size, np.uint8)
        assert held.scatter([1, 0], wire) == held.gather([1, 0], back)
        assert (wire == back).all()


def test_a_page_of_other_sizes_has_no_canonical_form() -> None:
    plain = [HeadMajorPage(HEADS, *sizes) for sizes in ((24, 5, 4), (8, 5, 4), (32, 5, 1))]
    tiled = [HeadMajorPage(HEADS, 32, *sizes, paired=True) for sizes in ((32, 4), (24, 2))]
    for page in plain + tiled:
        size = page.page_bytes
        host = HostMemory(np.zeros(size, np.uint8), Geometry(1, 1, size, size, size))
        with pytest.raises(ValueError, match="no canonical form"):
            CanonicalMemory(host, page)
    size = HeadMajorPage(HEADS, 32, PORTABLE, 4).page_bytes
    host = HostMemory(np.zeros(size, np.uint8), Geometry(1, 1, size, size, size))
    with pytest.raises(ValueError, match="no canonical form"):
        CanonicalMemory(host, HeadMajorPage(HEADS, 16, PORTABLE, 4))


def test_what_is_not_there_is_refused() -> None:
    _, held = memory(32, 4, PORTABLE)
    one = held.geometry.block_bytes
    with pytest.raises(ValueError, match="outside"):
        held.gather([held.geometry.blocks], np.zeros(one, np.uint8))
    with pytest.raises(ValueError, match="outside"):
        held.scatter([-1], np.zeros(one, np.uint8))
    with pytest.raises(ValueError, match="contiguous bytes"):
        held.gather([0], np.zeros(one + 4, np.uint8))
    with pytest.raises(ValueError, match="once"):
        held.scatter([3, 3], np.zeros(2 * one, np.uint8))
