"""Which worker's store gets copies of a stream's blocks, and what a request gains by them later.

A holder is another decode worker of the same fingerprint with a store for others; the one that has
fewest requests, and the same for a stream as long as it can be. One that has the stream's LoRA
adapter comes before one that could only give the copies to others. When the stream's own worker is
lost, the next attempt runs where the copies are, if that has room, and else pulls them from there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from common.messages import KvHolder
from services.router.placement.types import (
    PlacementContext,
    ResourceRequest,
    StoredPrefix,
    WorkerView,
)


def wants_copies(policy: str, request: ResourceRequest, *, resumable: bool) -> bool:
    """Whether there are to be copies of this stream's blocks. `resumable`: its gateway can continue
    it elsewhere; copies are of no use to others."""
    return resumable and (policy == "all" or (policy == "sessions" and bool(request.session)))


def choose_holder(
    decode: WorkerView,
    others: Iterable[WorkerView],
    request_id: str,
    before: str,
    excluded_pairs: AbstractSet[tuple[str, str]],
    adapter: str = "",
) -> WorkerView | None:
    """The worker whose store gets copies of what runs at `decode`; None: there is none. `before`:
    identity of the holder of the attempt before; empty = none. `adapter`: id of the stream's LoRA
    adapter; empty = none."""
    if not decode.pull_blocks:
        return None
    able = [
        view
        for view in others
        if view.pull_blocks
        and view.identity != decode.identity
        and view.fingerprint == decode.fingerprint
        and (decode.identity, view.identity) not in excluded_pairs
    ]
    if not able:
        return None

    def cost(view: WorkerView) -> tuple[bool, bool, int, int]:
        spread = zlib.crc32(f"{request_id}{view.identity}".encode())
        return not view.has(adapter), view.identity != before, view.requests, spread

    return min(able, key=cost)


def worth_going_to(holder: WorkerView, blocks: int, prompt_tokens: int) -> bool:
    """Whether it has so much of the prompt that nobody else is asked first. `blocks`: leading ones
    that it had when that was told last."""
    return 2 * blocks * holder.block_tokens >= prompt_tokens


def holder_of(view: WorkerView, *, goes_on: bool = False) -> KvHolder:
    """For the decode worker. `goes_on`: as in `KvHolder`."""
    return KvHolder(
        name=view.name,
        incarnation=view.incarnation,
        fingerprint=view.fingerprint,
        kv_address=view.kv_address,
        goes_on=goes_on,
    )


def at_holder(context: PlacementContext, holder: WorkerView) -> PlacementContext:
    """For a placement at the holder itself: its own store has the blocks, so nothing is computed
    elsewhere."""
    reason = f"copies of its blocks are in the store of {holder.name}"
    request = context.request._replace(local_reason=context.request.local_reason or reason)
    return context._replace(request=request, local=True)


def with_copies(
    stored: Sequence[StoredPrefix], holder: WorkerView, tokens: int
) -> tuple[StoredPrefix, ...]:
    """`stored`, and that this holder may have all of the prompt's tokens: how many it has, it says
    when it is asked."""
    others = [prefix for prefix in stored if prefix.identity != holder.identity]
    copies = StoredPrefix(
        holder.name,
        holder.identity,
        holder.incarnation,
        holder.fingerprint,
        holder.kv_address,
        tokens,
    )
    return (*others, copies)
