"""The receives that D has posted, and what becomes of what comes in them.

Theory of operation: everything runs on the KV thread. A message is received into a staging buffer,
or, if P loans it, read where it lies (`staging/loans.py`). If its header is what was asked for and
the handoff still wants the message, the payload is copied to the engine's blocks; the copy yields
the sum by which it is verified. On a card the copy runs by itself: the buffer is not free, the
message has not arrived, and the handoff is not over before it has ended, because the engine may
give the blocks of an ended handoff to others.

From card to card a slot is answered by a header, and the payload follows as a message of its own.
Its receive is posted when the header is there, whatever that says, unless it is a right void one:
a payload that nobody receives would keep P's buffer for ever.

When a handoff has ended, P may still owe an answer to receives that were posted for it. Their
buffers stay out of the pool until the answer comes. A P that does not answer within
`ORPHAN_RECEIVE_S` loses the link, which completes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.header import (
    HEADER_BYTES,
    INDEX_BITS,
    LOST,
    Arrival,
    Claim,
    CopyIn,
    ExpectedMessage,
    Verdict,
    claim_of,
    has_transfer,
    loan_offset,
    verify_message,
)
from common.kv.checksum.kernel import sum_of
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.protocol import Ended
from common.kv.handoff.receiver import Receiver
from common.kv.layout import Mark, Payload
from common.kv.packing import Packing
from common.kv.peers.channel import Channel
from common.kv.plan import TransferPlan
from common.kv.staging.loans import loaned_message, verify_loan
from common.kv.staging.pool import Buffer, StagingPool
from common.kv.transport.ucx import data_tag, payload_tag

ORPHAN_RECEIVE_S = 5.0


@dataclass(slots=True)
class Fetch:
    """One handoff of this D."""

    receiver: Receiver
    block_ids: list[int]
    began: float
    packing: Packing
    """Of the memory that the blocks are in."""
    after: Mark | None
    """After which the blocks may be written; None: now."""
    channel: Channel | None = None
    read_offsets: list[int] = field(default_factory=list)
    """Loaned messages that were read and not reported to P yet."""
    copying: set[tuple[int, int]] = field(default_factory=set)
    """Transfer and index of messages that are being copied to the blocks."""
    ended: Ended | None = None
    """How it ended; it is over when nothing is copied any more."""

    def blocks_of(self, expected: ExpectedMessage) -> list[int]:
        at = expected.first_block - self.receiver.spec.first_block
        return self.block_ids[at : at + expected.blocks]


class Receive(NamedTuple):
    """One that was posted, for any one message of the plan or for the offset of a loaned one."""

    channel: Channel
    plan: TransferPlan
    slot: int
    pool: StagingPool | None
    """Whose the buffer is; None: it holds an offset, and is nobody's."""
    buffer: Buffer
    key: tuple[int, int]
    """Transfer and slot."""
    data_key: bytes


def receive_of(
    channel: Channel, plan: TransferPlan, slot: int, pool: StagingPool | None, buffer: Buffer
) -> Receive:
    key, data_key = (plan.transfer, slot), channel.data_key(plan.transfer)
    return Receive(channel, plan, slot, pool, buffer, key, data_key)


class Arrivals:
    """Those of all fetches."""

    def __init__(
        self,
        fetch_of: Callable[[int], Fetch | None],
        arrived: Callable[[Fetch, int, Arrival, int | None], None],
        counters: HandoffCounters,
        clock: Callable[[], float],
    ) -> None:
        """`fetch_of` returns the open fetch that a transfer belongs to. `arrived` is called with
        the fetch, the transfer, what arrived, and where it was loaned."""
        self._fetch_of, self._arrived = fetch_of, arrived
        self._counters, self._clock = counters, clock
        #: Posted receives by transfer and slot: the channel, and when an orphan costs its link.
        self._open: dict[tuple[int, int], tuple[Channel, float]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def tick(self, now: float) -> None:
        for (transfer, _), (channel, until) in list(self._open.items()):
            if until <= now and self._fetch_of(transfer) is None:
                channel.close("granted messages were never answered")

    def post(self, receive: Receive) -> None:
        buffer, plan = receive.buffer, receive.plan
        buffer.header[:] = 0
        self._open[receive.key] = (receive.channel, self._clock() + ORPHAN_RECEIVE_S)
        if buffer.message is None or receive.pool is None:
            into: Payload = buffer.header
        else:
            into = buffer.message[: HEADER_BYTES + plan.payload_bytes_max]
        done = self._on_header if plan.direct else self._on_message
        tag = data_tag(*receive.key, INDEX_BITS)
        receive.channel.link.receive(into, tag, lambda error: done(receive, error))

    def _on_header(self, receive: Receive, error: str | None) -> None:
        """From card to card."""
        claim = LOST if error else self._claim(receive, receive.buffer.header)
        fetch = self._fetch_of(receive.plan.transfer)
        if isinstance(claim, Arrival) and claim.verdict in {Verdict.LOST, Verdict.VOID}:
            self._end(receive, fetch, claim, error)
            return

        def on_payload(error: str | None) -> None:
            fetch = self._fetch_of(receive.plan.transfer)
            if error is not None or fetch is None:
                self._end(receive, fetch, LOST, error)
            else:
                self._place(receive, fetch, receive.buffer.header, receive.buffer.payload)

        payload = receive.buffer.payload[: receive.plan.payload_bytes_max]
        receive.channel.link.receive(payload, payload_tag(*receive.key, INDEX_BITS), on_payload)

    def _on_message(self, receive: Receive, error: str | None) -> None:
        """A whole message, or the offset of a loaned one."""
        plan, data_key = receive.plan, receive.data_key
        fetch, message = self._fetch_of(plan.transfer), receive.buffer.message
        assert message is not None
        offset = None if error else loan_offset(message, *receive.key, key=data_key)
        if error is not None:
            self._end(receive, fetch, LOST, error)
        elif offset is not None:
            self._on_loan(receive, fetch, offset)
        elif fetch is not None and fetch.packing.on_card:
            self._place(receive, fetch, message, message[HEADER_BYTES:])
        else:
            self._end(receive, fetch, self._verified(receive, fetch, message))

    def _verified(self, receive: Receive, fetch: Fetch | None, message: Bytes) -> Arrival:
        plan, copy_in = receive.plan, self._copy_in(receive.plan, fetch)
        return verify_message(message, *receive.key, plan.planned, copy_in, key=receive.data_key)

    def _on_loan(self, receive: Receive, fetch: Fetch | None, offset: int) -> None:
        plan, segment = receive.plan, receive.channel.remote_segment
        if fetch is None:
            self._end(receive, None, Arrival(Verdict.OK))
            return
        loan = loaned_message(segment, offset, plan.payload_bytes_max)
        if fetch.packing.on_card:
            self._place(receive, fetch, loan, loan[HEADER_BYTES:], offset)
            return
        copy_in, data_key = self._copy_in(plan, fetch), receive.data_key
        arrival = verify_loan(loan, *receive.key, plan.planned, copy_in, key=data_key)
        self._end(receive, fetch, arrival, offset=offset)

    # ------------------------------------------------------------ to the blocks

    def _copy_in(self, plan: TransferPlan, fetch: Fetch | None) -> CopyIn:
        """Returns the function that copies a payload to its blocks at once if this plan still lacks
        it, and else only sums it up."""

        def copy_in(expected: ExpectedMessage, payload: Bytes) -> Sum:
            if fetch is None or not fetch.receiver.lacks(plan.transfer, expected.index):
                return sum_of(payload)
            if fetch.after is not None:
                fetch.after.synchronize()
            return fetch.packing.scatter(fetch.blocks_of(expected), payload, expected)

        return copy_in

    def _place(
        self,
        receive: Receive,
        fetch: Fetch,
        header: Bytes,
        payload: Payload,
        offset: int | None = None,
    ) -> None:
        """To blocks on a card. `payload`: and what is behind it. `offset`: of a loaned message,
        which P may overwrite meanwhile."""
        transfer, before = receive.plan.transfer, header[:HEADER_BYTES].tobytes()
        is_lost = offset is not None and not has_transfer(header, transfer)
        claim = LOST if is_lost else self._claim(receive, header)
        if isinstance(claim, Arrival):
            self._end(receive, fetch, claim, offset=offset)
            return
        expected, place = claim.expected, (transfer, claim.expected.index)
        if place in fetch.copying or not fetch.receiver.lacks(*place):
            self._end(receive, None, Arrival(Verdict.OK))
            return

        def copied(total: Sum) -> None:
            fetch.copying.remove(place)
            changed = header[:HEADER_BYTES].tobytes() != before
            self._end(receive, fetch, LOST if changed else claim.judge(total), offset=offset)

        fetch.copying.add(place)
        device, blocks = fetch.packing.device(expected), fetch.blocks_of(expected)
        payload = payload[: expected.payload_bytes]
        if device is not None:
            layers = range(expected.first_layer, expected.end_layer)
            device.start_scatter(blocks, payload, layers, fetch.after, copied)
            return
        if fetch.after is not None:
            fetch.after.synchronize()
        assert isinstance(payload, np.ndarray)
        copied(fetch.packing.scatter(blocks, payload, expected))

    def _claim(self, receive: Receive, header: Bytes) -> Claim | Arrival:
        return claim_of(header, *receive.key, receive.plan.planned, key=receive.data_key)

    def _end(
        self,
        receive: Receive,
        fetch: Fetch | None,
        arrival: Arrival,
        error: str | None = None,
        *,
        offset: int | None = None,
    ) -> None:
        """The slot is answered. `fetch`: None where nobody wants the answer."""
        del self._open[receive.key]
        self._counters.stale += fetch is None and arrival.verdict is Verdict.OK
        if fetch is not None:
            self._arrived(fetch, receive.plan.transfer, arrival, offset)
        if receive.pool is not None:
            receive.pool.release(receive.buffer)
        receive.channel.note_traffic()
        if error is not None:
            receive.channel.close(f"a receive failed in the transport: {error}")
