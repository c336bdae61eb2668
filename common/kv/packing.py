"""Between the engine's blocks and a message's payload: a plain copy, or one through the codec.

One scratch message, made when a compressed one first passes; so it is for one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from common.kv.codec import Bytes, Codec
from common.kv.digest import Encoding, Expected
from common.kv.kernel import Sum, sum_of
from common.kv.layout import KvMemory


class Packing:
    """`payload_bytes`: the largest message, not compressed."""

    def __init__(self, memory: KvMemory, payload_bytes: int) -> None:
        inside = memory.geometry.inside
        self._memory = memory
        self._page_bytes = memory.geometry.page_bytes
        self._payload_bytes = payload_bytes
        self._codec = Codec(inside) if inside is not None else None
        self._scratch: Bytes | None = None

    def gather(self, block_ids: Sequence[int], payload: Bytes, what: Expected) -> Sum:
        """After it the blocks are not read any more; `encode` completes the payload."""
        target = payload if what.encoding is Encoding.NONE else self._raw(what)
        return self._memory.gather(block_ids, target, range(what.first_layer, what.end_layer))

    def encode(self, payload: Bytes, what: Expected, gathered: Sum) -> Sum:
        """Directly after its `gather`, which said `gathered`. Returns the sum of the payload."""
        if what.encoding is not Encoding.FP8 or self._codec is None:
            return gathered
        self._codec.encode(self._raw(what), payload)
        return sum_of(payload)

    def scatter(self, block_ids: Sequence[int], payload: Bytes, what: Expected) -> Sum:
        """Whatever the payload is worth: its sum, which this returns, will tell."""
        layers = range(what.first_layer, what.end_layer)
        if what.encoding is not Encoding.FP8 or self._codec is None:
            return self._memory.scatter(block_ids, payload, layers)
        data, total = self._raw(what), sum_of(payload)
        self._codec.decode(payload, data)
        self._memory.scatter(block_ids, data, layers)
        return total

    def _raw(self, what: Expected) -> Bytes:
        if self._scratch is None:
            self._scratch = np.empty(self._payload_bytes, np.uint8)
        return self._scratch[: what.blocks * what.layers * self._page_bytes]
