"""The number of KV blocks that tokens need. KV is held in whole blocks."""

from __future__ import annotations


def blocks_for(tokens: int, block_tokens: int) -> int:
    """How many blocks of `block_tokens` tokens hold `tokens`."""
    return -(-tokens // block_tokens)


def whole_blocks(tokens: int, block_tokens: int) -> int:
    """`tokens`, rounded up to whole blocks."""
    return -(-tokens // block_tokens) * block_tokens
