"""How many streams and KV tokens routers may promise on one decode worker.

Two routers may each believe that the same slot is free, so the worker checks for itself.
"""

from __future__ import annotations

from typing import NamedTuple

from common.messages import Capacity


class GrantLimit(NamedTuple):
    """What a worker grants at most."""

    #: Streams at once.
    streams_max: int
    #: KV tokens of all streams, each stream counted in whole blocks.
    kv_tokens_max: int
    #: Tokens of one KV block.
    block_tokens: int

    def why_refused(self, streams: int, kv_tokens: int) -> str:
        """Why one more stream, with which `kv_tokens` would be promised, is refused; empty if it is
        not."""
        if streams >= self.streams_max:
            return f"{self.streams_max} streams are already held"
        if kv_tokens > self.kv_tokens_max:
            return f"{kv_tokens} KV tokens would be promised, {self.kv_tokens_max} may be"
        return ""


def grant_limit_of(capacity: Capacity, kv_grant_max: float) -> GrantLimit:
    """`kv_grant_max` is the share of the KV tokens that may be promised, as in the router."""
    blocks = int(capacity.kv_blocks * kv_grant_max)
    return GrantLimit(capacity.max_num_seqs, blocks * capacity.block_tokens, capacity.block_tokens)
