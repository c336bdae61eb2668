"""Between the engine's blocks and a message's payload: a plain copy, or one through the fp8 codec.

A compressed message passes through a scratch buffer, allocated when the first one comes, so a
`Packing` belongs to one thread. `Packings` has one for each form in which KV leaves an engine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from common.kv.canonical import CanonicalForm
from common.kv.checksum.definition import Sum
from common.kv.checksum.header import Encoding, ExpectedMessage
from common.kv.checksum.kernel import sum_of
from common.kv.compression.fp8 import Bytes, Fp8Codec, measure_rate
from common.kv.compression.policy import CompressionChooser, Mode
from common.kv.handoff.parts import Rank, share_of
from common.kv.layout import DeviceCopies, Geometry, KvMemory, Payload
from common.kv.plan import KvShape, shape_of
from common.messages import Ticket


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

    @property
    def on_card(self) -> bool:
        """Whether there are copies that run by themselves."""
        return self._memory.device is not None

    def device(self, message: ExpectedMessage) -> DeviceCopies | None:
        """What starts the copy of this message; None: `gather` and `scatter` copy it at once."""
        return self._memory.device if message.encoding is Encoding.NONE else None

    def gather(self, block_ids: Sequence[int], payload: Bytes, message: ExpectedMessage) -> Sum:
        """Reads the blocks, which may change after it. `encode` must follow, with the sum that this
        returns."""
        raw = payload if message.encoding is Encoding.NONE else self._raw(message)
        return self._memory.gather(block_ids, raw, range(message.first_layer, message.end_layer))

    def encode(self, payload: Payload, message: ExpectedMessage, gathered: Sum) -> Sum:
        """Completes the payload that `gather` began. Returns the sum of the payload."""
        if message.encoding is not Encoding.FP8 or self._codec is None:
            return gathered
        assert isinstance(payload, np.ndarray)
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


class Packings:
    """Those of an engine's memory: as it lies, and in its canonical forms, whole or by parts."""

    def __init__(
        self,
        memory: KvMemory,
        payload_bytes: int,
        canonical: Mapping[str, CanonicalForm],
        rank: Rank,
    ) -> None:
        """`payload_bytes`: as in `Packing`. `canonical`: the same memory in the canonical form, by
        `Ticket.element`. `rank`: that this memory is of."""
        self.plain, self.rank = Packing(memory, payload_bytes), rank
        self._payload_bytes, self._forms = payload_bytes, canonical
        self._canonical: dict[tuple[str, int, int], Packing] = {}

    def of(self, ticket: Ticket) -> Packing | None:
        """For what travels by this ticket, or by that of a part (`handoff/parts.py`); None: this
        memory has no form for it."""
        if not ticket.canonical:
            return self.plain
        form = self._forms.get(ticket.element)
        which, parts = share_of(ticket, self.rank)
        made = self._canonical.get((ticket.element, which, parts))
        if made is None and form is not None and form.heads % parts == 0:
            made = Packing(form.part(which, parts), self._payload_bytes)
            self._canonical[ticket.element, which, parts] = made
        return made

    def shape_of(self, ticket: Ticket) -> KvShape | None:
        """Of what travels by this ticket."""
        packing = self.of(ticket)
        return packing.shape if packing is not None else None


def measured_chooser(mode: Mode, geometry: Geometry) -> CompressionChooser:
    """The policy of compression for KV of this geometry, with this host's measure of the codec."""
    page_format, codec = geometry.page_format, 0.0
    if mode == "auto" and page_format is not None and page_format.fp8_page_bytes:
        codec = measure_rate(Fp8Codec(page_format), page_format, time.perf_counter)
    return CompressionChooser(mode, geometry.fp8_page_bytes / geometry.page_bytes, codec)
