"""How far a request with a KV budget may grow before it has to ask: pure arithmetic.

A budget is what a request is promised at a time. Blocks are counted over all KV cache groups of the
model, as the engine takes them, and a budget holds whole blocks, at least one.
"""

from __future__ import annotations

from bisect import bisect_right
from math import ceil
from typing import NamedTuple

from services.router.placement.types import WorkerView

LEFT = 5
"""When a fifth of the latest budget is left, more is asked for."""


class Step(NamedTuple):
    """Up to where a request is promised KV. Tokens are those of prompt and answer; 0 = all that it
    may have, so that it never asks."""

    tokens: int
    #: When it asks for more.
    near: int


ALL = Step(0, 0)


def next_step(tokens: int, total: int, budget_bytes: int, view: WorkerView) -> Step:
    """Of a request that has `tokens` and may have `total`: the fewest whole budgets that hold these
    and more than one block more, so that a step of a block does not use it up before D has asked.
    `view`: of any worker of its model."""
    block_bytes = view.kv_token_bytes * view.block_tokens
    if not budget_bytes or block_bytes <= 0:
        return ALL
    blocks = max(1, int(budget_bytes / block_bytes))
    least = view.kv_need(min(total, tokens + view.block_tokens + 1)) // view.block_tokens
    most = blocks * ceil(least / blocks)
    if most * view.block_tokens >= view.kv_need(total):
        return ALL
    part, before = _held_by(most, total, view), _held_by(most - blocks, total, view)
    return Step(part, part - (part - before) // LEFT)


def _held_by(blocks: int, total: int, view: WorkerView) -> int:
    """How many tokens a sequence has at most while so many blocks hold it."""
    limit = blocks * view.block_tokens
    return bisect_right(range(1, total + 1), limit, key=view.kv_need)
