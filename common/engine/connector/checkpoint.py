"""The scheduler half's part in checkpoints: which blocks of a running stream another holder gets.

Theory of operation: the router names a holder with the request. What the store has of the stream's
blocks is offered to it in order, step by step: the blocks of the prompt and those that are
generated. So a holder never has a block without those before it. A block that the store has not, or
not any more, is saved again while the stream runs, because the engine still has it. The engine's
step offers and waits for nothing: the KV thread does the rest (`common.kv.offers.offered`).

Routers know blocks by other names than engines do (`common.prefix`), so the offer carries both.
Prompts with images and adapters go without: the holder finds them by the engine's hashes all the
same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.engine.connector.metadata import StoreOffer, attempt_key, holder_of
from common.kv.store.table import BlockName, StoreTable
from common.messages import KvHolder
from common.net.wire import pack_ids
from common.prefix import chain, root

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.request import Request

    from common.engine.connector.metadata import StorePlan

LOOK_AHEAD = 64
"""Blocks of a stream that one step looks at."""


@dataclass(slots=True)
class _Checkpoint:
    holder: KvHolder
    #: Blocks that were offered.
    offered: int
    #: The name of the last of them; None: this prompt's blocks have no names.
    name: bytes | None


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

    def new_request(self, request: Request) -> None:
        holder = holder_of(request.kv_transfer_params)
        if not self._fingerprint or holder is None or holder.fingerprint != self._fingerprint:
            return
        plain = not request.mm_features and request.lora_request is None
        name = root(request.cache_salt) if plain else None
        self._streams[request.request_id] = _Checkpoint(holder, 0, name)

    @property
    def streams(self) -> list[str]:
        """The requests that have a holder."""
        return list(self._streams)

    def finished(self, request: Request, plan: StorePlan) -> None:
        if self._streams.pop(request.request_id, None) is not None:
            plan.ended_offers.append(attempt_key(request.request_id))

    def offer(
        self, request: Request, filled: int, names: list[BlockName], plan: StorePlan
    ) -> list[int]:
        """Adds to the plan what can be offered now. `filled`: how many blocks of the request have
        filled. `names`: of those that were not offered. Returns the numbers of the next blocks that
        the store lacks."""
        stream = self._streams[request.request_id]
        names = names[:LOOK_AHEAD]
        found = len(self._table.find(names, self._clock()))
        first, stream.offered = stream.offered, stream.offered + found
        if found:
            plan.offers.append(
                StoreOffer(
                    attempt_key(request.request_id),
                    stream.holder,
                    b"".join(name.block_hash for name in names[:found]),
                    self._names(stream, request, first, found),
                    filled,
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

    def _names(self, stream: _Checkpoint, request: Request, first: int, count: int) -> bytes:
        if stream.name is None:
            return b""
        step = self._block_tokens
        ids = list(request.all_token_ids[first * step : (first + count) * step])
        names = list(chain(pack_ids(ids), step, stream.name))
        stream.name = names[-1]
        return b"".join(names)
