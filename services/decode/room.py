"""How much a decode worker lets routers promise of it."""

from __future__ import annotations

from typing import NamedTuple

from common.messages import Capacity


class Room(NamedTuple):
    """`kv_tokens_max`: of whole blocks. With two routers each may believe the same slot free; the
    worker itself is the fence."""

    streams_max: int
    kv_tokens_max: int
    block_tokens: int

    def needed(self, tokens: int) -> int:
        """Whole blocks for this many tokens, in tokens."""
        return -(-tokens // self.block_tokens) * self.block_tokens

    def objection(self, streams: int, kv_tokens: int) -> str:
        """Why one more, to a sum of `kv_tokens`, is too much; empty when it is not."""
        if streams >= self.streams_max:
            return f"{self.streams_max} streams are already held"
        if kv_tokens > self.kv_tokens_max:
            return f"{kv_tokens} KV tokens would be promised, {self.kv_tokens_max} may be"
        return ""


def room_of(capacity: Capacity, kv_grant_max: float) -> Room:
    """`kv_grant_max`: the share of its KV tokens that may be promised, as routers count it."""
    blocks = int(capacity.kv_blocks * kv_grant_max)
    return Room(capacity.max_num_seqs, blocks * capacity.block_tokens, capacity.block_tokens)
