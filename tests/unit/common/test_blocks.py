"""A number of tokens in whole blocks, and which blocks hold what a model's layers still need."""

from __future__ import annotations

import msgspec
import pytest

from common.blocks import (
    HandoverOrder,
    Kept,
    KvGroup,
    blocks_for,
    blocks_to_move,
    group_of_prefixes,
    keeps_part,
    kv_need,
    other_groups,
    usable_blocks,
    whole_blocks,
)

FULL = KvGroup(16)
WINDOW = KvGroup(16, Kept.WINDOW, 20)
CHUNK = KvGroup(16, Kept.CHUNK, 32)
STATE = KvGroup(4096, Kept.STATE)


def test_a_block_that_is_begun_counts() -> None:
    assert [blocks_for(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert [whole_blocks(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 16, 16, 32]


@pytest.mark.parametrize(
    ("group", "tokens", "numbers"),
    [
        (FULL, 0, []),
        (FULL, 17, [0, 1]),
        (WINDOW, 17, [0, 1]),
        (WINDOW, 34, [0, 1, 2]),
        (WINDOW, 35, [1, 2]),
        (WINDOW, 48, [1, 2]),
        (WINDOW, 51, [2, 3]),
        (CHUNK, 31, [0, 1]),
        (CHUNK, 32, []),
        (CHUNK, 33, [2]),
        (STATE, 0, []),
        (STATE, 1, [0]),
        (STATE, 3000, [0]),
        (KvGroup(16, Kept.STATE), 33, [2]),
        (KvGroup(16, Kept.STATE), 32, [1]),
    ],
)
def test_the_blocks_that_the_next_token_needs(
    group: KvGroup, tokens: int, numbers: list[int]
) -> None:
    assert list(group.blocks(tokens)) == numbers


@pytest.mark.parametrize("group", [FULL, WINDOW, CHUNK, STATE])
def test_no_sequence_ever_holds_more_than_is_promised(group: KvGroup) -> None:
    """A step keeps what the token before it needed, and has a place for its own."""
    for tokens in range(1, 200):
        held = max(len({*group.blocks(t), t // group.block_tokens}) for t in range(tokens))
        assert held <= group.blocks_max(tokens)


@pytest.mark.parametrize("group", [WINDOW, CHUNK])
def test_what_grows_no_more_is_promised_once(group: KvGroup) -> None:
    assert group.blocks_max(10_000) <= 1 + max(len(group.blocks(t)) for t in range(1000))


def test_a_prompt_that_is_computed_in_steps_holds_a_step_more() -> None:
    wide = KvGroup(16, Kept.WINDOW, 20, in_flight=160)
    assert wide.blocks_max(1_000, computes=True) == 13
    assert wide.blocks_max(100, computes=True) == 7
    assert KvGroup(16, Kept.CHUNK, 32, in_flight=160).blocks_max(1_000, computes=True) == 12
    assert FULL.blocks_max(100, computes=True) == 7
    assert kv_need(1_000, 16, [FULL, wide, STATE], computes=True) == (63 + 13 + 1) * 16


@pytest.mark.parametrize(
    "given", [b'{"block_tokens":0}', b'{"block_tokens":16,"reach":0}', b'{"block_tokens":-1}']
)
def test_a_group_that_cannot_be_is_refused_where_it_is_decoded(given: bytes) -> None:
    """The router divides by these numbers."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(given, type=KvGroup)


def test_a_handoff_is_ordered_by_the_token_that_completes_a_block() -> None:
    order = HandoverOrder([FULL, WINDOW, STATE], 40)
    assert list(zip(order.ends, order.places, strict=True)) == [
        (16, (0, 0)),
        (32, (0, 1)),
        (32, (1, 1)),
        (40, (0, 2)),
        (40, (1, 2)),
        (40, (2, 0)),
    ]
    assert len(order) == 6
    assert len(HandoverOrder([FULL, WINDOW], 0)) == 0


def test_what_lacks_after_a_prefix_is_an_end_of_the_order() -> None:
    """Whole blocks before the prefix's end are there, in every group; nothing else is."""
    groups = [FULL, WINDOW, CHUNK]
    for tokens in range(1, 120):
        order = HandoverOrder(groups, tokens)
        for prefix in range(0, tokens, 16):
            lacking = [(group, number) for group, number in order.places if number >= prefix // 16]
            first = sum(end <= prefix for end in order.ends)
            assert order.places[first:] == lacking


@pytest.mark.parametrize("reach", [1, 64, 128, 129, 512, 1024, 4096])
@pytest.mark.parametrize("block_tokens", [16, 128])
def test_a_window_of_a_long_prompt_moves_its_own_blocks_and_one_more(
    reach: int, block_tokens: int
) -> None:
    groups = [KvGroup(block_tokens), KvGroup(block_tokens, Kept.WINDOW, reach)]
    for prompt_tokens in range(8_000, 8_000 + block_tokens):
        places = HandoverOrder(groups, prompt_tokens - 1).places
        moved = [number for group, number in places if group == 1]
        whole = blocks_for(prompt_tokens - 1, block_tokens)
        assert len(moved) <= blocks_for(reach, block_tokens) + 1
        assert moved == list(range(whole - len(moved), whole))
        assert len(places) - len(moved) == whole


def test_only_groups_that_let_tokens_go_keep_a_part() -> None:
    assert not keeps_part([FULL, KvGroup(32)])
    assert keeps_part([FULL, WINDOW])


def test_prefixes_are_followed_where_all_tokens_are_kept() -> None:
    assert group_of_prefixes([WINDOW, STATE, FULL, KvGroup(32)]) == 2
    assert group_of_prefixes([WINDOW, STATE]) == 0
    assert group_of_prefixes([]) == 0


def test_other_groups_are_those_whose_blocks_have_the_same_names() -> None:
    groups = [WINDOW, FULL, STATE, KvGroup(16), KvGroup(32)]
    assert other_groups(groups) == [(0, WINDOW), (3, groups[3])]
    assert other_groups([FULL]) == other_groups([]) == []


@pytest.mark.parametrize(
    ("group", "has", "usable"),
    [
        (WINDOW, [1, 1, 1, 1], 4),
        (WINDOW, [0, 0, 1, 1], 4),
        (WINDOW, [0, 0, 0, 1], 0),
        (WINDOW, [1, 0, 0, 1], 1),
        (WINDOW, [1, 1, 0, 1], 2),
        (WINDOW, [0, 1, 1, 0], 3),
        (CHUNK, [0, 0, 0, 0], 4),
        (CHUNK, [0, 0, 1], 3),
        (CHUNK, [1, 0, 0], 2),
        (FULL, [1, 1, 0, 1], 2),
        (KvGroup(16, Kept.WINDOW, 1), [0, 0], 2),
    ],
)
def test_a_prefix_is_of_use_where_each_group_has_what_comes_next(
    group: KvGroup, has: list[int], usable: int
) -> None:
    held = [bool(one) for one in has]
    assert usable_blocks(len(has), [(group, held)]) == usable
    everything = (FULL, [True] * len(has))
    assert usable_blocks(len(has), [everything, (group, held)]) == usable
    assert usable_blocks(len(has), [everything]) == len(has)


def test_what_a_sequence_occupies_counts_blocks_of_all_groups_alike() -> None:
    assert kv_need(40, 16) == 48
    assert kv_need(40, 16, [FULL, WINDOW, STATE]) == (3 + 3 + 1) * 16
    assert kv_need(1600, 16, [FULL, WINDOW, STATE]) == (100 + 3 + 1) * 16


@pytest.mark.parametrize("groups", [[FULL], [FULL, WINDOW], [WINDOW, CHUNK], [FULL, STATE]])
def test_what_moves_is_what_the_handoff_has_after_the_prefix(groups: list[KvGroup]) -> None:
    for tokens in range(1, 150):
        order = HandoverOrder(groups, tokens)
        for cached in range(0, tokens, 16):
            moved = len(order) - sum(end <= cached for end in order.ends)
            assert blocks_to_move(tokens, cached, groups) == moved
