"""Streams that are promised KV for a part of their tokens: when the routers are told that one comes
near to it, and what a new promise changes.

The engine makes its next step while the routers answer, so that this step is counted ahead, at its
largest. A stream that is then told to leave has no more than it is promised where a step makes one
token, and less than a step more where it makes several.

The worker enforces nothing itself: a stream that no router answers for goes on, because an error
would be worse than a promise that is exceeded. It tells again with each further block, so that
neither a lost report nor a lost answer lasts.
"""

from __future__ import annotations

import msgspec

from common.messages import BudgetReached, Decode, GrantKv
from common.worker.actions import Action, ToRouter
from services.decode.grant_limit import GrantLimit
from services.decode.stream import Stream


def promised(limit: GrantLimit, kv_tokens: int, total: int) -> int:
    """KV tokens, in whole blocks, of a stream that may grow to `total` tokens and is promised KV
    for `kv_tokens`; 0 = for all."""
    return limit.kv_tokens(min(kv_tokens, total) if kv_tokens else total)


def tell_at(order: Decode | GrantKv) -> int:
    """As `Stream.tell_at`, at first."""
    return min(order.kv_tokens_near, order.kv_tokens) or order.kv_tokens


def told(stream: Stream, block_tokens: int, step_tokens: int) -> list[Action]:
    """After each step of a stream that has `tell_at`; the next makes `step_tokens` at most."""
    tokens = stream.tokens + step_tokens
    if tokens < stream.tell_at:
        return []
    limit = stream.held.kv_tokens
    stream.tell_at = limit if tokens < limit else tokens + block_tokens
    report = BudgetReached(request_id=stream.request_id, attempt=stream.attempt, tokens=tokens)
    return [ToRouter(report)]


def regrant(stream: Stream, order: GrantKv, limit: GrantLimit, others: int) -> int | None:
    """What the stream is promised from now on; None if this worker cannot promise that, as where
    another router has given the room away. `others`: KV tokens of all other streams."""
    total = stream.held.prompt_tokens + stream.held.max_tokens
    kv_tokens = promised(limit, order.kv_tokens, total)
    if others + kv_tokens > limit.kv_tokens_max:
        return None
    stream.held = msgspec.structs.replace(stream.held, kv_tokens=order.kv_tokens)
    stream.kv_tokens, stream.tell_at = kv_tokens, tell_at(order)
    return kv_tokens
