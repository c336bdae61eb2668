"""Where this process's lent messages lie, for tests that bend them below our code."""

from __future__ import annotations

import struct

import numpy as np

from common.kv import ucx
from common.kv.arena import Arena
from common.kv.digest import HEADER_BYTES, INDEX_BITS, lent_at

PAYLOAD_BYTES, PAYLOAD_BYTES_AT = struct.Struct("<Q"), 32
"""The field of a data header, as in `common.kv.digest`."""


class Lent:
    """To be installed before the KV service is made."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.uint8)

    def install(self) -> None:
        make = Arena.__init__

        def made(arena: Arena, size: int) -> None:
            make(arena, size)
            self._memory = arena.memory

        Arena.__init__ = made  # type: ignore[method-assign,assignment]

    def message(self, sent: ucx.Buffer, tag: int) -> ucx.Buffer | None:
        """From the header to the end, what this data message tells D to read; None: it is sent
        whole, or says nothing."""
        if not tag & ucx.DATA_TAG:
            return None
        transfer, slot = divmod(tag & ~ucx.DATA_TAG, 1 << INDEX_BITS)
        offset = lent_at(sent, transfer, slot)
        if offset is None:
            return None
        (payload_bytes,) = PAYLOAD_BYTES.unpack_from(self._memory.data, offset + PAYLOAD_BYTES_AT)
        return self._memory[offset : offset + HEADER_BYTES + int(payload_bytes)]
