"""Prompts that this worker will probably get, as its engine and its store name their blocks.

Theory of operation: a prompt that still waits in the router's queue is hashed here as the engine
will hash it, so that nothing of it has to reach the engine before its turn. The KV thread gets the
hashes of what the engine's own cache lacks, and does the rest (`common.kv.offers.prefetches`).
Prompts with images or an adapter are left alone: what enters their hashes is not known before they
are processed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from common.engine.port import EngineRequest, engine_key
from common.engine.vllm.kv_events import PrefixWatch
from common.kv.messages import DaemonToKv, KvArrived, KvPrefetch
from common.kv.store.recency import owner_of
from common.messages import Capacity
from common.net.wire import pack_ids
from common.prefix import chain, root

if TYPE_CHECKING:
    from vllm.v1.engine.input_processor import InputProcessor

HASHED_MAX = 1_024
"""Blocks of one prompt, because they are hashed between the steps of other streams."""
ORDERS_MAX = 64
"""Requests that have not come yet, of which the oldest are forgotten."""


class PrefetchOrders:
    """Those of one engine."""

    def __init__(
        self,
        processor: InputProcessor,
        capacity: Capacity,
        prefixes: PrefixWatch,
        send: Callable[[DaemonToKv], None],
    ) -> None:
        """`prefixes`: what the engine's cache has. `send`: to the KV thread."""
        self._algorithm = processor.vllm_config.cache_config.prefix_caching_hash_algo
        self._capacity = capacity
        self._prefixes = prefixes
        self._send = send
        self._ordered: OrderedDict[str, None] = OrderedDict()
        self._hasher: Callable[[Any], list[Any]] | None = None

    def order(self, request: EngineRequest) -> None:
        """Does nothing where the store neither gives nor gets blocks."""
        if not self._capacity.pull_blocks or request.images or request.adapter:
            return
        step = self._capacity.block_tokens
        whole = min((len(request.prompt_ids) - 1) // step, HASHED_MAX)
        hashes = self._hashes(request, whole * step)
        cached = self._prefixes.cached(hashes)
        if cached == len(hashes):
            return
        packed = pack_ids(request.prompt_ids[: len(hashes) * step])
        names = list(chain(packed, step, root(request.cache_salt)))
        source = request.source
        self._ordered[request.key] = None
        if len(self._ordered) > ORDERS_MAX:
            self._ordered.popitem(last=False)
        self._send(
            KvPrefetch(
                request_id=request.request_id,
                attempt=request.attempt,
                hashes=b"".join(hashes[cached:]),
                names=b"".join(names[cached:]),
                source=source,
                source_blocks=max(0, source.tokens // step - cached) if source is not None else 0,
                owner=owner_of(request.cache_salt),
            )
        )

    def arrived(self, request_id: str, attempt: int) -> None:
        """The engine gets this request now. Of one that was not ordered nothing is told."""
        key = engine_key(request_id, attempt)
        if key in self._ordered:
            del self._ordered[key]
            self._send(KvArrived(request_id=request_id, attempt=attempt))

    def _hashes(self, request: EngineRequest, tokens: int) -> list[bytes]:
        """The engine's own, of the blocks of so many leading tokens."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        if self._hasher is None:
            self._hasher = _block_hasher(self._algorithm, self._capacity.block_tokens)
        made = Request(
            request.key,
            list(request.prompt_ids[:tokens]),
            SamplingParams(max_tokens=1),
            None,
            cache_salt=request.cache_salt,
            block_hasher=self._hasher,
        )
        return [bytes(block_hash) for block_hash in made.block_hashes]


def _block_hasher(algorithm: str, block_tokens: int) -> Callable[[Any], list[Any]]:
    """As EngineCore makes its own."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    function = get_hash_fn_by_name(algorithm)
    init_none_hash(function)
    hasher: Callable[[Any], list[Any]] = get_request_block_hasher(block_tokens, function)
    return hasher
