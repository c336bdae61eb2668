"""The scheduler half's part in checkpoints: which blocks of a running stream another holder gets.

Theory of operation: the router names a holder with the request. What the store has of the stream's
blocks is offered to it in order, step by step: the blocks of the prompt and those that are
generated. So a holder never has a block without those before it. A block that the store has not, or
not any more, is saved again while the stream runs, because the engine still has it. The engine's
step offers and waits for nothing: the KV thread does the rest (`common.kv.offers.offered`).

Routers know blocks by other names than engines do (`block_names.py`), so the offer carries both.
Prompts with images go without: the holder finds them by the engine's hashes all the same.

A stream that is to move gets another holder while it runs: the worker where it goes on.

A pool gets the blocks of a stream that is over, too, because a prompt is stored when it is computed
and hardly sooner. They are offered as they come to the store, and given up at the first that does
not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.engine.connector.block_names import BlockNames
from common.engine.connector.metadata import StoreOffer, attempt_key, holder_of
from common.kv.store.recency import owner_of
from common.kv.store.table import BlockName, StoreTable
from common.messages import KvHolder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from vllm.v1.request import Request

    from common.engine.connector.metadata import StorePlan

GROUP = 0
"""The one KV cache group."""
LOOK_AHEAD = 64
"""Blocks of a stream that one step looks at."""
LEAVING_MAX = 256
"""Streams that are over and not all offered; of others the rest is not."""


@dataclass(slots=True)
class _Checkpoint:
    holder: KvHolder
    #: Blocks that were offered.
    offered: int
    #: Whose blocks they are.
    owner: bytes
    names: BlockNames


@dataclass(slots=True)
class _Leaving:
    """A stream that is over, whose holder is a pool."""

    stream: _Checkpoint
    request: Request
    #: Blocks that have filled.
    filled: int


class Checkpoints:
    """One per engine. Request ids are vLLM's ids."""

    def __init__(
        self, table: StoreTable, block_tokens: int, clock: Callable[[], float], fingerprint: str
    ) -> None:
        """`fingerprint`: of the holders that may get blocks; empty: nobody may."""
        self._table = table
        self._block_tokens = block_tokens
        self._clock = clock
        self._fingerprint = fingerprint
        self._streams: dict[str, _Checkpoint] = {}
        self._leaving: dict[str, _Leaving] = {}

    def new_request(self, request: Request) -> None:
        holder = holder_of(request.kv_transfer_params)
        if holder is not None:
            self._begin(request, holder)

    def change(self, request: Request, holder: KvHolder | None, plan: StorePlan) -> None:
        """This holder gets the blocks of a running stream from now on, from the first one; nobody
        does if it is None."""
        before = self._streams.pop(request.request_id, None)
        if before is not None and before.holder == holder:
            self._streams[request.request_id] = before
        elif holder is not None:
            self._begin(request, holder)
        elif before is not None:
            plan.ended_offers.append(attempt_key(request.request_id))

    def _begin(self, request: Request, holder: KvHolder) -> None:
        if not self._fingerprint or holder.fingerprint != self._fingerprint:
            return
        owner, names = owner_of(request.cache_salt), BlockNames(request, self._block_tokens)
        self._streams[request.request_id] = _Checkpoint(holder, 0, owner, names)

    @property
    def streams(self) -> list[str]:
        """The requests that have a holder."""
        return list(self._streams)

    @property
    def leaving(self) -> bool:
        """Whether blocks of streams that are over are still to be offered."""
        return bool(self._leaving)

    def finished(self, request: Request, filled: int, plan: StorePlan) -> None:
        """The stream is over. `filled`: how many of its blocks have filled."""
        stream = self._streams.pop(request.request_id, None)
        if stream is None:
            return
        if stream.holder.lasting and len(self._leaving) < LEAVING_MAX:
            self._leaving[request.request_id] = _Leaving(stream, request, filled)
        else:
            plan.ended_offers.append(attempt_key(request.request_id))

    def offer_left(self, listed: Collection[BlockName], plan: StorePlan) -> None:
        """Adds to the plan what can be offered now of streams that are over. `listed`: the blocks
        that wait to be saved; what is not one of them and not in the store never gets there."""
        for request_id, left in list(self._leaving.items()):
            stream = left.stream
            hashes = left.request.block_hashes[stream.offered : left.filled]
            names = [BlockName(GROUP, block_hash) for block_hash in hashes]
            first = stream.offered
            lacking = self._offer(stream, left.request, left.filled, names, plan)
            lost = lacking[:1] == [stream.offered] and names[lacking[0] - first] not in listed
            if lost or stream.offered >= first + len(names):
                del self._leaving[request_id]
                plan.ended_offers.append(attempt_key(request_id))

    def offer(
        self, request: Request, filled: int, names: list[BlockName], plan: StorePlan
    ) -> list[int]:
        """Adds to the plan what can be offered now. `filled`: how many blocks of the request have
        filled. `names`: of those that were not offered. Returns the numbers of the next blocks that
        the store lacks."""
        return self._offer(self._streams[request.request_id], request, filled, names, plan)

    def _offer(
        self,
        stream: _Checkpoint,
        request: Request,
        filled: int,
        names: list[BlockName],
        plan: StorePlan,
    ) -> list[int]:
        names = names[:LOOK_AHEAD]
        found = len(self._table.find(names, self._clock()))
        first, stream.offered = stream.offered, stream.offered + found
        if found:
            plan.offers.append(
                StoreOffer(
                    attempt_key(request.request_id),
                    stream.holder,
                    b"".join(name.block_hash for name in names[:found]),
                    b"".join(stream.names.of(first, first + found)),
                    filled,
                    stream.owner,
                )
            )
        return [
            number
            for number, name in enumerate(names[found:], first + found)
            if name not in self._table
        ]

    def offered(self, request_id: str) -> int:
        """How many leading blocks of this stream were offered."""
        return self._streams[request_id].offered
