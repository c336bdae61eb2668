"""The names by which routers know the blocks of a request (`common.prefix`), made where its blocks
are: routers hash prompts by another function than engines do.

A chain of hashes goes on from where it was left, so each block is hashed once. Prompts with images
have no names here, because what enters their hashes is not kept. Those of a LoRA adapter begin from
its id, which is the name that vLLM has of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.net.wire import pack_ids
from common.prefix import chain, root

if TYPE_CHECKING:
    from vllm.v1.request import Request


class BlockNames:
    """Those of one request."""

    def __init__(self, request: Request, block_tokens: int) -> None:
        lora = request.lora_request
        adapter = lora.lora_name if lora is not None else ""
        self._request = request
        self._block_tokens = block_tokens
        self._root = None if request.mm_features else root(request.cache_salt, adapter)
        #: The number of the next block, and the name of the one before it.
        self._next, self._before = 0, self._root

    def of(self, first: int, end: int) -> list[bytes]:
        """Of the blocks [first, end), whose tokens are all there; empty where they have no names.
        Blocks before those that were asked for last are hashed again from the first one on."""
        if self._root is None or first >= end:
            return []
        if first < self._next:
            self._next, self._before = 0, self._root
        step, begin = self._block_tokens, self._next
        ids = list(self._request.all_token_ids[begin * step : end * step])
        assert self._before is not None
        names = list(chain(pack_ids(ids), step, self._before))
        self._next, self._before = begin + len(names), names[-1] if names else self._before
        return names[first - begin :]
