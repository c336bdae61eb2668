"""Between the engine's blocks and a message's payload: a plain copy, or one through the fp8 codec.

A compressed message passes through a scratch buffer, allocated when the first one comes, so a
`Packing` belongs to one thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from common.kv.checksum.definition import Sum
from common.kv.checksum.header import Encoding, ExpectedMessage
from common.kv.checksum.kernel import sum_of
from common.kv.compression.fp8 import Bytes, Fp8Codec, measure_rate
from common.kv.compression.policy import CompressionChooser, Mode
from common.kv.layout import Geometry, KvMemory
from common.kv.plan import KvShape, shape_of


class Packing:
    """Copies payloads out of and into paged memory, compressed if the message is."""

    def __init__(self, memory: KvMemory, payload_bytes: int) -> None:
        """`payload_bytes`: the largest message when it is not compressed."""
        page_format = memory.geometry.page_format
        self.shape: KvShape = shape_of(memory.geometry)
        #: Of the memory.
        self.blocks = memory.geometry.blocks
        self._memory = memory
        self._page_bytes = memory.geometry.page_bytes
        self._payload_bytes = payload_bytes
        self._codec = Fp8Codec(page_format) if page_format is not None else None
        self._scratch: Bytes | None = None

    def gather(self, block_ids: Sequence[int], payload: Bytes, message: ExpectedMessage) -> Sum:
        """Reads the blocks, which may change after it. `encode` must follow, with the sum that this
        returns."""
        raw = payload if message.encoding is Encoding.NONE else self._raw(message)
        return self._memory.gather(block_ids, raw, range(message.first_layer, message.end_layer))

    def encode(self, payload: Bytes, message: ExpectedMessage, gathered: Sum) -> Sum:
        """Completes the payload that `gather` began. Returns the sum of the payload."""
        if message.encoding is not Encoding.FP8 or self._codec is None:
            return gathered
        self._codec.encode(self._raw(message), payload)
        return sum_of(payload)

    def scatter(self, block_ids: Sequence[int], payload: Bytes, message: ExpectedMessage) -> Sum:
        """Writes the payload to the blocks before anybody knows whether it is sound. Returns its
        sum, by which the caller verifies it."""
        layers = range(message.first_layer, message.end_layer)
        if message.encoding is not Encoding.FP8 or self._codec is None:
            return self._memory.scatter(block_ids, payload, layers)
        raw, total = self._raw(message), sum_of(payload)
        self._codec.decode(payload, raw)
        self._memory.scatter(block_ids, raw, layers)
        return total

    def _raw(self, message: ExpectedMessage) -> Bytes:
        if self._scratch is None:
            self._scratch = np.empty(self._payload_bytes, np.uint8)
        return self._scratch[: message.blocks * message.layers * self._page_bytes]


def measured_chooser(mode: Mode, geometry: Geometry) -> CompressionChooser:
    """The policy of compression for KV of this geometry, with this host's measure of the codec."""
    page_format, codec = geometry.page_format, 0.0
    if mode == "auto" and page_format is not None and page_format.fp8_page_bytes:
        codec = measure_rate(Fp8Codec(page_format), page_format, time.perf_counter)
    return CompressionChooser(mode, geometry.fp8_page_bytes / geometry.page_bytes, codec)
