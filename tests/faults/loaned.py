"""Where this process's loaned messages lie, for tests that bend them below our code."""

from __future__ import annotations

import struct

import numpy as np

from common.kv.checksum.header import HEADER_BYTES, INDEX_BITS, loan_offset
from common.kv.staging.shared_segment import SharedSegment
from common.kv.transport import ucx

PAYLOAD_BYTES, PAYLOAD_BYTES_AT = struct.Struct("<Q"), 32
"""The field of a data header, as in `common.kv.checksum.header`."""


class LoanedMessages:
    """To be installed before the KV service is made."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.uint8)

    def install(self) -> None:
        make = SharedSegment.__init__

        def made(segment: SharedSegment, size: int) -> None:
            make(segment, size)
            self._memory = segment.memory

        SharedSegment.__init__ = made  # type: ignore[method-assign,assignment]

    def message(self, sent: ucx.Buffer, tag: int) -> ucx.Buffer | None:
        """The loaned message, from header to end, whose offset this data message carries; None if
        it is sent whole or void."""
        if not tag & ucx.DATA_TAG:
            return None
        transfer, slot = divmod(tag & ~ucx.DATA_TAG, 1 << INDEX_BITS)
        offset = loan_offset(sent, transfer, slot)
        if offset is None:
            return None
        (payload_bytes,) = PAYLOAD_BYTES.unpack_from(self._memory.data, offset + PAYLOAD_BYTES_AT)
        return self._memory[offset : offset + HEADER_BYTES + int(payload_bytes)]
