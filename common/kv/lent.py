"""Lent messages: P leaves them in its arena, D reads them there (`arena.py`).

Theory of operation: a loan ends when D says `taken`, or when the transfer or the link does, and
then P may write there while D, which knows nothing of it yet, still reads. The digest is of the
very bytes that D took, so what was overwritten fails. That P called a loan back is no damage,
though: it breaks the seal, the header, before it writes anything else, and a D that finds another
header after its copy takes the message for lost on its way. Stores become visible in their order
on x86; elsewhere the system calls and locks between seal and payload order them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from common.kv.digest import HEADER_BYTES, LOST, Absorb, Arrival, Expected, is_of, judge
from common.kv.kernel import Bytes
from common.kv.staging import Buffer, Staging

LANE = "arena/memory"


def break_seal(message: Bytes) -> None:
    message[:HEADER_BYTES] = 0


def take(
    message: Bytes,
    transfer: int,
    slot: int,
    planned: Callable[[int], Expected | None],
    absorb: Absorb,
) -> Arrival:
    """As `judge`, of a lent message."""
    seal = message[:HEADER_BYTES].tobytes()
    if not is_of(message, transfer):
        return LOST
    arrival = judge(message, transfer, slot, planned, absorb)
    return arrival if message[:HEADER_BYTES].tobytes() == seal else LOST


def lent_message(arena: Bytes | None, offset: int, payload_bytes_max: int) -> Bytes:
    """What lies at this offset; where nothing can, a message that nobody sent."""
    if arena is None or offset > arena.nbytes - HEADER_BYTES:
        return np.zeros(HEADER_BYTES, np.uint8)
    return arena[offset : offset + HEADER_BYTES + payload_bytes_max]


class Loans:
    """P's list of what is lent: by offset, to whom (a channel's id) and for which transfer. Never
    more than there are staging buffers."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._lent: dict[int, tuple[int, int, Buffer]] = {}

    def __len__(self) -> int:
        return len(self._lent)

    def lend(self, buffer: Buffer, peer: int, transfer: int) -> int:
        """The offset to tell."""
        offset = self._staging.offset(buffer)
        self._lent[offset] = (peer, transfer, buffer)
        return offset

    def taken(self, peer: int, transfer: int, offsets: tuple[int, ...]) -> None:
        """What was not lent to this peer for this transfer is ignored: it may be lent anew."""
        for offset in offsets:
            loan = self._lent.get(offset)
            if loan is not None and loan[:2] == (peer, transfer):
                self._end(offset)

    def review(self, serves: Callable[[int], bool]) -> None:
        """Ends the loans of transfers that are not served any more."""
        for offset, (_, transfer, _) in list(self._lent.items()):
            if not serves(transfer):
                self._end(offset)

    def _end(self, offset: int) -> None:
        loan = self._lent.pop(offset, None)
        if loan is not None:
            self._staging.give(loan[2])
