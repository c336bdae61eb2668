"""KV in blocks: how many hold so many tokens, and which of them a model's layers still need.

An engine keeps the layers of a model in *KV cache groups*. The layers of a group keep the KV of the
same tokens: all of them, those in a window, or a single state. One pool of blocks serves all
groups, and a block belongs to one group at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

TOKENS_MAX = 1 << 53
KV_GROUPS_MAX = 256
CANONICAL_TOKENS = 16
"""Tokens of a block in the canonical form, in which KV travels between engines that lay it out
differently (`common.kv.canonical`)."""

Element = Literal["float32", "bfloat16", "float16"]
"""The type of the items of KV."""
ELEMENT_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def element_on_wire(prefill: str, decode: str) -> str:
    """In which element type KV travels from an engine with one to an engine with another: in the
    smaller, so that the side with the larger converts, and P's where they are of a size. Empty if
    one of them is not known."""
    if not (prefill in ELEMENT_BYTES and decode in ELEMENT_BYTES):
        return ""
    return decode if ELEMENT_BYTES[decode] < ELEMENT_BYTES[prefill] else prefill


def blocks_for(tokens: int, block_tokens: int) -> int:
    """How many blocks of `block_tokens` tokens hold `tokens`."""
    return -(-tokens // block_tokens)


def whole_blocks(tokens: int, block_tokens: int) -> int:
    """`tokens`, rounded up to whole blocks."""
    return -(-tokens // block_tokens) * block_tokens


class Kept(enum.StrEnum):
    """Which tokens the layers of a group keep."""

    ALL = "all"
    WINDOW = "window"
    """The last `reach` tokens, the one that is computed included (sliding window)."""
    CHUNK = "chunk"
    """Those since the last multiple of `reach` (chunked local attention)."""
    STATE = "state"
    """None; one state stands for all tokens so far (Mamba, linear attention)."""


class KvGroup(msgspec.Struct, frozen=True):
    """One KV cache group of an engine."""

    block_tokens: Annotated[int, Meta(ge=1, le=TOKENS_MAX)]
    kept: Kept = Kept.ALL
    reach: Annotated[int, Meta(ge=1, le=TOKENS_MAX)] = 1
    """Tokens of the window or the chunk."""
    in_flight: Annotated[int, Meta(ge=0, le=TOKENS_MAX)] = 0
    """Tokens that the engine computes at most before it lets go what a window or chunk has left."""

    def blocks(self, tokens: int) -> range:
        """The numbers of the blocks, counted from the start of the sequence, that hold what the
        next token needs of the `tokens` before it."""
        first = self._first_token(tokens) // self.block_tokens
        return range(first, blocks_for(tokens, self.block_tokens))

    def blocks_max(self, tokens: int, *, computes: bool = False) -> int:
        """The most blocks that a sequence holds while it grows to so many tokens, token by token,
        or, where the engine `computes` a prompt, in steps of many tokens."""
        whole = blocks_for(tokens, self.block_tokens)
        ahead = self.in_flight if computes else 1
        match self.kept:
            case Kept.ALL:
                return whole
            case Kept.WINDOW:
                return min(whole, blocks_for(self.reach - 1 + ahead, self.block_tokens) + 1)
            case Kept.CHUNK:
                return min(whole, blocks_for(self.reach + ahead, self.block_tokens))
            case Kept.STATE:
                return min(whole, 1)

    def _first_token(self, tokens: int) -> int:
        match self.kept:
            case Kept.ALL:
                return 0
            case Kept.WINDOW:
                return max(0, tokens - self.reach + 1)
            case Kept.CHUNK:
                return tokens // self.reach * self.reach
            case Kept.STATE:
                return max(0, tokens - 1)


def kv_need(
    tokens: int, block_tokens: int, groups: Sequence[KvGroup] = (), *, computes: bool = False
) -> int:
    """What a sequence that grows to so many tokens occupies at most, in whole blocks. A block of
    any group counts as `block_tokens` tokens. No `groups`: one that keeps all tokens. `computes`:
    as in `KvGroup.blocks_max`."""
    if not groups:
        return whole_blocks(tokens, block_tokens)
    return sum(group.blocks_max(tokens, computes=computes) for group in groups) * block_tokens


def blocks_to_move(tokens: int, cached: int, groups: Sequence[KvGroup]) -> int:
    """The blocks that hold the KV of so many tokens and are not in the cache of a worker that has
    that of the first `cached` tokens."""
    return sum(
        len(range(max(kept.start, cached // group.block_tokens), kept.stop))
        for group in groups
        for kept in (group.blocks(tokens),)
    )


def keeps_state(groups: Sequence[KvGroup]) -> bool:
    """Whether some group keeps a state in place of tokens."""
    return any(group.kept is Kept.STATE for group in groups)


def keeps_part(groups: Sequence[KvGroup]) -> bool:
    """Whether some group keeps the KV of a part of the tokens only."""
    return any(group.kept is not Kept.ALL for group in groups)


def streams_can_move(groups: Sequence[KvGroup]) -> bool:
    """Whether a running stream can go on elsewhere from its blocks. Not where layers keep a part of
    the tokens: a step in flight may have moved a window or a state on."""
    return len(groups) <= 1 and not keeps_part(groups)


def canonical_parts(groups: Sequence[KvGroup]) -> int:
    """How many canonical blocks are in one of the engine's; 0 if this KV has no canonical form."""
    if len(groups) != 1 or keeps_part(groups) or groups[0].block_tokens % CANONICAL_TOKENS:
        return 0
    return groups[0].block_tokens // CANONICAL_TOKENS


def group_of_prefixes(groups: Sequence[KvGroup]) -> int:
    """The group whose blocks tell best which prefixes an engine has: the first that keeps all
    tokens, or the first."""
    return next((at for at, group in enumerate(groups) if group.kept is Kept.ALL), 0)


def other_groups(groups: Sequence[KvGroup]) -> list[tuple[int, KvGroup]]:
    """Those that must have a prefix too, each with its place. A group with blocks of another size
    has other hashes, of which nothing is known."""
    followed = group_of_prefixes(groups)
    return [
        (at, group)
        for at, group in enumerate(groups)
        if at != followed and group.block_tokens == groups[followed].block_tokens
    ]


def usable_blocks(blocks: int, others: Sequence[tuple[KvGroup, Sequence[bool]]]) -> int:
    """The longest prefix, of at most so many blocks, after which the next token finds what it needs
    in these groups too. `others`: for each its rule, and which of the blocks it has."""
    rows = [(group, _in_a_row(has)) for group, has in others]
    for end in range(blocks, 0, -1):
        if all(len(group.blocks(end * group.block_tokens)) <= row[end] for group, row in rows):
            return end
    return 0


def _in_a_row(has: Sequence[bool]) -> list[int]:
    """For each number of blocks, how many of the last ones are there without a gap."""
    row = [0]
    for one in has:
        row.append(row[-1] + 1 if one else 0)
    return row


class HandoverOrder:
    """The blocks that hold a prompt's KV, over all groups, in the order in which a prefill computes
    them. P and D count the blocks of a handoff in this order, so that both name a block by one
    number, and what D lacks after a prefix hit is an end of it."""

    def __init__(self, groups: Sequence[KvGroup], tokens: int, *, canonical: bool = False) -> None:
        """`tokens`: of the prompt, those whose KV is handed over. `canonical`: blocks are counted
        in the canonical form, if this KV has one."""
        #: How many blocks of this order are in one of the engine's.
        self.parts = max(1, canonical_parts(groups)) if canonical else 1
        if self.parts > 1:
            groups = (KvGroup(CANONICAL_TOKENS),)
        placed = sorted(
            (min((number + 1) * group.block_tokens, tokens), at, number)
            for at, group in enumerate(groups)
            for number in group.blocks(tokens)
        )
        #: For each block the tokens after which it holds its KV.
        self.ends = [end for end, _, _ in placed]
        #: For each block its group, and its number in the group.
        self.places = [(at, number) for _, at, number in placed]

    def __len__(self) -> int:
        return len(self.places)

    def engine_number(self, number: int) -> int:
        """The number, in its group, of the engine's block that has block `number` of this order."""
        return number // self.parts

    def block_id(self, engine_block: int, number: int) -> int:
        """The id of block `number` of its group, which lies in this block of the engine."""
        return engine_block * self.parts + number % self.parts
