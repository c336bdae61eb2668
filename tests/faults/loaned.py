"""Where this process's loaned messages lie, for tests that bend them below our code."""

from __future__ import annotations

import struct

import numpy as np

from common.kv.checksum.header import HEADER_BYTES, Flag
from common.kv.staging.shared_segment import SharedSegment
from common.kv.transport import ucx

FLAG_AT, PAYLOAD_BYTES_AT, OFFSET_AT = 5, 32, 56
"""Fields of a header, as in `common.kv.checksum.header`."""
PAYLOAD_BYTES = OFFSET = struct.Struct("<Q")


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
        if sent[FLAG_AT] != Flag.LOAN:
            return None
        (offset,) = OFFSET.unpack_from(sent.data, OFFSET_AT)
        (payload_bytes,) = PAYLOAD_BYTES.unpack_from(self._memory.data, offset + PAYLOAD_BYTES_AT)
        return self._memory[offset : offset + HEADER_BYTES + int(payload_bytes)]
