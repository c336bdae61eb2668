"""How many streams and KV tokens routers may promise on one decode worker.

Two routers may each believe that the same slot is free, so the worker checks for itself.
"""

from __future__ import annotations

from typing import NamedTuple

from common.blocks import KvGroup, kv_need
from common.messages import Capacity


class GrantLimit(NamedTuple):
    """What a worker grants at most."""

    #: Streams at once, those that have no slot of the engine yet included.
    streams_max: int
    #: KV tokens of all streams, each stream counted in whole blocks.
    kv_tokens_max: int
    #: Tokens of one KV block.
    block_tokens: int
    kv_groups: tuple[KvGroup, ...] = ()

    def kv_tokens(self, tokens: int) -> int:
        """What a stream that grows to so many tokens is promised."""
        return kv_need(tokens, self.block_tokens, self.kv_groups)

    def why_refused(self, streams: int, kv_tokens: int) -> str:
        """Why one more stream, with which `kv_tokens` would be promised, is refused; empty if it is
        not."""
        if streams >= self.streams_max:
            return f"{self.streams_max} streams are already held"
        if kv_tokens > self.kv_tokens_max:
            return f"{kv_tokens} KV tokens would be promised, {self.kv_tokens_max} may be"
        return ""


def grant_limit_of(
    capacity: Capacity, kv_grant_max: float, slots_ahead_max: float = 0.0
) -> GrantLimit:
    """`kv_grant_max` is the share of the KV tokens that may be promised, and `slots_ahead_max` that
    of the slots which may be promised once more; both as in the router."""
    blocks = int(capacity.kv_blocks * kv_grant_max)
    block = capacity.block_tokens
    streams = capacity.requests_max(slots_ahead_max)
    return GrantLimit(streams, blocks * block, block, capacity.kv_groups)
