"""Loaned messages: P leaves them in its shared segment, and D reads them there.

Theory of operation: a loan ends when D reports that it has read the message, or when the transfer
or the link ends. In the second case P may write there while D, which does not know it yet, still
reads. The digest is computed over the very bytes that D copied, so an overwritten message fails.
But P ending a loan is no damage: P invalidates the header before it writes anything else, and a D
that finds another header after its copy treats the message as lost in transit. Stores become
visible in their order on x86; elsewhere the system calls and locks between header and payload order
them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common.kv.checksum.definition import Bytes
from common.kv.checksum.header import (
    HEADER_BYTES,
    LOST,
    Arrival,
    CopyIn,
    ExpectedMessage,
    has_transfer,
    verify_message,
)
from common.kv.staging.pool import Buffer, StagingPool

LOAN_LANE = "memfd/memory"
"""What the status of a worker calls loans, as UCX calls a lane: `transport/device`."""


def invalidate_header(message: Bytes) -> None:
    """Call before writing to a buffer that may still be read. The header alone will do."""
    message[:HEADER_BYTES] = 0


def verify_loan(
    message: Bytes,
    transfer: int,
    slot: int,
    planned: Callable[[int], ExpectedMessage | None],
    copy_in: CopyIn,
    *,
    key: bytes = b"",
) -> Arrival:
    """As `verify_message`, of a loaned message that P may overwrite meanwhile."""
    header = message[:HEADER_BYTES].tobytes()
    if not has_transfer(message, transfer):
        return LOST
    arrival = verify_message(message, transfer, slot, planned, copy_in, key=key)
    return arrival if message[:HEADER_BYTES].tobytes() == header else LOST


def loaned_message(segment: Bytes | None, offset: int, payload_bytes_max: int) -> Bytes:
    """What lies at this offset of P's segment; an invalid header where nothing can."""
    if segment is None or offset > segment.nbytes - HEADER_BYTES:
        return np.zeros(HEADER_BYTES, np.uint8)
    return segment[offset : offset + HEADER_BYTES + payload_bytes_max]


class Loans:
    """P's open loans by offset: to whom (a channel's id), for which transfer, and the buffer.

    There are never more than staging buffers.
    """

    def __init__(self, pool: StagingPool) -> None:
        self._pool = pool
        self._loans: dict[int, tuple[int, int, Buffer]] = {}

    def __len__(self) -> int:
        return len(self._loans)

    def lend(self, buffer: Buffer, peer: int, transfer: int) -> int:
        """Returns the offset to send to D."""
        offset = self._pool.offset(buffer)
        self._loans[offset] = (peer, transfer, buffer)
        return offset

    def end_read(self, peer: int, transfer: int, offsets: tuple[int, ...]) -> None:
        """D has read these messages. An offset that is not loaned to this peer for this transfer is
        ignored, because it may have been loaned anew."""
        for offset in offsets:
            loan = self._loans.get(offset)
            if loan is not None and loan[:2] == (peer, transfer):
                self._end(offset)

    def end_unserved(self, serves: Callable[[int], bool]) -> None:
        """Ends the loans of transfers that are not served any more."""
        for offset, (_, transfer, _) in list(self._loans.items()):
            if not serves(transfer):
                self._end(offset)

    def _end(self, offset: int) -> None:
        loan = self._loans.pop(offset, None)
        if loan is not None:
            self._pool.release(loan[2])
