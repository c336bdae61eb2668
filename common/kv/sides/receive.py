"""D's side of the handoffs of one engine: the shell around its receivers. It connects to P, posts
receives, places what arrives and verifies it.

Theory of operation: everything runs on the KV thread. Each fetch has a `Receiver`
(`handoff/receiver.py`), whose actions are done here. A message is received into a staging buffer;
if its header is what was asked for and the receiver still wants the message, the payload is copied
to the engine's blocks. The copy yields the digest, and the receiver counts the message only if the
digest is right. The engine waits for the whole handoff, so it never reads a block that was not
verified. A P of this host may loan a message instead (`staging/loans.py`): the slot is then
answered with an offset, which needs no staging buffer.

When a handoff has ended, P may still owe an answer to receives that were posted for it. Their
buffers stay out of the pool until the answer comes. A P that does not answer within
`ORPHAN_RECEIVE_S` loses the link, which completes them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from common.errors import BatonError, Code
from common.identity import AttemptKey, attempt_of_part
from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.header import (
    HEADER_BYTES,
    INDEX_BITS,
    LOST,
    CopyIn,
    ExpectedMessage,
    Verdict,
    loan_offset,
    verify_message,
)
from common.kv.checksum.kernel import sum_of
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.parts import Rank
from common.kv.handoff.protocol import (
    RECEIVE_TERMINAL,
    Action,
    Arrived,
    Cancel,
    Connect,
    Connected,
    ConnectFailed,
    Ended,
    PeerLost,
    Post,
    Posted,
    ReceiveEvent,
    SendControl,
    Start,
    Tick,
)
from common.kv.handoff.receiver import FetchSpec, Receiver
from common.kv.messages import KvCredit, KvRefused, KvTaken
from common.kv.packing import Packing
from common.kv.peers.channel import Channel, HandoffMessage
from common.kv.peers.connections import ConnectionListener, Connections
from common.kv.plan import TransferPlan
from common.kv.staging.loans import loaned_message, verify_loan
from common.kv.staging.pool import Buffer, StagingPool
from common.kv.transport.ucx import data_tag
from common.messages import KvHold, KvReport, Ticket
from common.net.kv_address import address_of, parts_of_ranks, rank_addresses

ORPHAN_RECEIVE_S = 5.0
OnEnded = Callable[[Ticket, KvReport, Ended], None]


@dataclass(slots=True)
class _Fetch:
    """One handoff of this D."""

    receiver: Receiver
    block_ids: list[int]
    began: float
    packing: Packing
    """Of the memory that the blocks are in."""
    channel: Channel | None = None
    read_offsets: list[int] = field(default_factory=list)
    """Loaned messages that were read and not reported to P yet."""


def _ignore_loss() -> None:
    """Nobody wants to know that a connection is lost."""


def _offer_nothing(_channel: Channel, _message: KvTaken) -> None:
    """Nothing is offered here, so no answer is awaited."""


class ReceiveSide:
    """Fetches tickets for this engine."""

    def __init__(
        self,
        rank: Rank,
        packing: Packing,
        pool: StagingPool,
        *,
        counters: HandoffCounters,
        on_ended: OnEnded,
        clock: Callable[[], float],
        make_connections: Callable[[ConnectionListener], Connections],
    ) -> None:
        """`packing`: of the engine's memory as it lies. `pool`: buffers for messages that P sends.
        `on_ended` is called once for each `fetch`."""
        self._rank = rank
        self._packing = packing
        self._pool = pool
        self._counters = counters
        self._on_ended = on_ended
        self._clock = clock
        self._uniform = secrets.SystemRandom().random
        #: Called when a connection is gone or could not be opened.
        self.on_lost: Callable[[], None] = _ignore_loss
        #: Called when a holder has answered an offer.
        self.on_taken: Callable[[Channel, KvTaken], None] = _offer_nothing
        self._fetches: dict[AttemptKey, _Fetch] = {}
        self._by_transfer: dict[int, AttemptKey] = {}
        #: Posted receives by transfer and slot: the channel, and when an orphan costs its link.
        self._open_receives: dict[tuple[int, int], tuple[Channel, float]] = {}
        self._next_transfer = int.from_bytes(os.urandom(8), "little") >> (INDEX_BITS + 2)
        self.connections = make_connections(self)

    # ------------------------------------------------------------ from the engine and the daemon

    def fetch(
        self,
        ticket: Ticket,
        spec: FetchSpec,
        block_ids: Sequence[int],
        packing: Packing | None = None,
    ) -> None:
        """`packing`: of the memory that the blocks are in; None: in the engine's."""
        key = (ticket.request_id, ticket.attempt)
        if key in self._fetches:
            ended = Ended(Code.DUPLICATE_REQUEST, "this ticket is being fetched already")
            self._on_ended(ticket, KvReport(), ended)
            return
        receiver = Receiver(ticket, spec, self._uniform)
        packing = self._packing if packing is None else packing
        self._fetches[key] = _Fetch(receiver, list(block_ids), self._clock(), packing)
        self._feed(key, Start())

    def cancel(self, key: AttemptKey, reason: str) -> None:
        """Idempotent."""
        self._feed(key, Cancel(reason))

    def tick(self) -> None:
        now = self._clock()
        for key, fetch in list(self._fetches.items()):
            if fetch.receiver.wake_at <= now:
                self._feed(key, Tick())
            self._report_read(fetch)
        awaited = {
            fetch.channel.id for fetch in self._fetches.values() if fetch.channel is not None
        }
        self.connections.tick(now, awaited)
        for (transfer, _), (channel, until) in list(self._open_receives.items()):
            if transfer not in self._by_transfer and until <= now:
                channel.close("granted messages were never answered")

    def holds(self, now: float) -> list[KvHold]:
        return [
            KvHold(
                request_id=attempt_of_part(key)[0],
                attempt=key[1],
                peer=fetch.receiver.ticket.prefill,
                side="receive",
                blocks=len(fetch.block_ids),
                bytes=len(fetch.block_ids) * fetch.receiver.spec.shape.block_bytes,
                lease_left_ms=max(0.0, fetch.receiver.spec.deadline - now) * 1000,
                age_ms=(now - fetch.began) * 1000,
            )
            for key, fetch in self._fetches.items()
        ]

    @property
    def fetching(self) -> int:
        """Handoffs, pulls and copies that have not ended."""
        return len(self._fetches)

    def __len__(self) -> int:
        return len(self._fetches) + len(self._open_receives) + self.connections.opening_count()

    def close(self) -> None:
        for key in list(self._fetches):
            self.cancel(key, "the engine closes")
        self.connections.close()

    # ------------------------------------------------------------ channels

    def connect(self, address: str) -> None:
        """Before a handoff needs it; if it fails, the first handoff connects again."""
        parts = parts_of_ranks(len(rank_addresses(address)), self._rank.of)
        with contextlib.suppress(BatonError, ValueError):
            for one in dict.fromkeys(self._rank.addresses(address, parts)):
                self.connections.connect(one)

    def open_channel(self, address: str) -> Channel | None:
        """The connection to this listener; None: it does not stand yet, and is begun."""
        try:
            return self.connections.open_channel(address_of(address, self._rank.number))
        except (BatonError, ValueError):
            return None

    def _connect(self, key: AttemptKey) -> None:
        try:
            ticket = self._fetches[key].receiver.ticket
            rank = self._rank.number if ticket.parts == 1 else 0  # a part's is of one rank alone
            self.connections.connect_for(key, address_of(ticket.kv_address, rank))
        except (BatonError, ValueError) as error:
            self.on_connect_failed(key, str(error), isinstance(error, ValueError))

    def on_connect_failed(self, key: AttemptKey, why: str, final: bool) -> None:
        """As in `ConnectionListener`, as are the next three."""
        self._feed(key, ConnectFailed(why, final=final))

    def on_connected(self, key: AttemptKey, channel: Channel) -> None:
        fetch, peer = self._fetches.get(key), channel.peer
        if fetch is None or peer is None:
            return
        ticket = fetch.receiver.ticket
        if (peer.name, peer.incarnation) != (ticket.prefill, ticket.prefill_incarnation):
            why = f"{ticket.kv_address} is {peer.name} in another incarnation than the ticket's"
            self._feed(key, ConnectFailed(why, final=True))
            return
        if not peer.allows(ticket):
            why = f"KV of {peer.name} is unlike that of here, and the ticket does not say so"
            self._feed(key, ConnectFailed(why, final=True))
            return
        transfer, self._next_transfer = self._next_transfer, self._next_transfer + 1
        fetch.channel = channel
        self._by_transfer[transfer] = key
        self._feed(key, Connected(channel.id, transfer, loan=channel.remote_segment is not None))

    def on_disconnected(self, channel: Channel) -> None:
        self.on_lost()
        for key in list(self._fetches):
            self._feed(key, PeerLost(channel.id))

    def on_message(self, channel: Channel, message: HandoffMessage) -> None:
        if isinstance(message, KvTaken):
            self.on_taken(channel, message)
            return
        if not isinstance(message, KvRefused):
            channel.close("a message that no prefill worker sends")
            return
        key = self._by_transfer.get(message.transfer)
        if key is not None:
            self._feed(key, message)

    # ------------------------------------------------------------ receivers

    def _feed(self, key: AttemptKey, event: ReceiveEvent) -> None:
        fetch = self._fetches.get(key)
        if fetch is None:
            return
        receiver = fetch.receiver
        before = receiver.transfer
        actions = receiver.handle(event, self._clock())
        if before is not None and receiver.transfer != before:
            self._by_transfer.pop(before, None)
            fetch.read_offsets.clear()
        if receiver.state in RECEIVE_TERMINAL:
            del self._fetches[key]
        self._run(key, fetch, actions)

    def _run(self, key: AttemptKey, fetch: _Fetch, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Connect():
                    self._connect(key)
                case Post():
                    self._post(key, fetch, action)
                case SendControl(peer, KvCredit() as credit):
                    self._credit(fetch, peer, credit)
                case SendControl(peer, message):
                    self.connections.send(peer, message)
                case Ended():
                    self._on_ended(fetch.receiver.ticket, fetch.receiver.report(), action)

    def _post(self, key: AttemptKey, fetch: _Fetch, post: Post) -> None:
        """Grants first and posts then, because posting takes no longer than the message to P."""
        channel, plan, first = fetch.channel, post.plan, post.first
        if channel is None:
            return
        buffers = self._available_buffers(post, loan=channel.remote_segment is not None)
        if post.due and not buffers:
            self._claim(key, channel, plan, first)
            return
        self._feed(key, Posted(plan.transfer, first + len(buffers)))
        for slot, buffer in enumerate(buffers, first):
            self._receive(channel, plan, slot, buffer)

    def _available_buffers(self, post: Post, *, loan: bool) -> list[Buffer]:
        """Buffers to post now. An offset of a loaned message needs no staging buffer. A message
        needs one, for as long as P takes to compute it: with half of the pool in use a transfer
        gets one buffer at a time, or those that wait for one P would keep this worker from
        another's."""
        count = post.upto - post.first
        if loan:
            return [np.empty(HEADER_BYTES, np.uint8) for _ in range(count)]
        buffers: list[Buffer] = []
        while len(buffers) < count and (self._pool.half_free or (post.due and not buffers)):
            buffer = self._pool.acquire()
            if buffer is None:
                break
            buffers.append(buffer)
        return buffers

    def _claim(self, key: AttemptKey, channel: Channel, plan: TransferPlan, slot: int) -> None:
        def use(buffer: Buffer) -> bool:
            if self._by_transfer.get(plan.transfer) != key or channel.closed:
                return False
            self._receive(channel, plan, slot, buffer)
            self._feed(key, Posted(plan.transfer, slot + 1))
            return True

        self._pool.claim(use)

    def _receive(self, channel: Channel, plan: TransferPlan, slot: int, buffer: Buffer) -> None:
        """Posts a receive for any one message of the plan, or for the offset where it is loaned."""
        message = buffer[: HEADER_BYTES + plan.payload_bytes_max]
        message[:HEADER_BYTES] = 0
        receive_key = (plan.transfer, slot)
        data_key = channel.data_key(plan.transfer)
        self._open_receives[receive_key] = (channel, self._clock() + ORPHAN_RECEIVE_S)

        def done(error: str | None) -> None:
            del self._open_receives[receive_key]
            key = self._by_transfer.get(plan.transfer)
            offset = None if error else loan_offset(message, *receive_key, key=data_key)
            if offset is not None:
                self._read_loan(key, channel, plan, slot, offset)
            else:
                copy_in = self._copy_in(key, plan)
                arrival = (
                    LOST
                    if error is not None
                    else verify_message(message, *receive_key, plan.planned, copy_in, key=data_key)
                )
                self._counters.stale += key is None and arrival.verdict is Verdict.OK
                if key is not None:
                    self._feed(key, Arrived(plan.transfer, arrival))
            if channel.remote_segment is None:
                self._pool.release(buffer)
            channel.note_traffic()
            if error is not None:
                channel.close(f"a receive failed in the transport: {error}")

        channel.link.receive(message, data_tag(*receive_key, INDEX_BITS), done)

    def _read_loan(
        self, key: AttemptKey | None, channel: Channel, plan: TransferPlan, slot: int, offset: int
    ) -> None:
        if key is None:
            self._counters.stale += 1
            return
        fetch = self._fetches[key]
        loan = loaned_message(channel.remote_segment, offset, plan.payload_bytes_max)
        copy_in, data_key = self._copy_in(key, plan), channel.data_key(plan.transfer)
        arrival = verify_loan(loan, plan.transfer, slot, plan.planned, copy_in, key=data_key)
        fetch.read_offsets.append(offset)
        self._feed(key, Arrived(plan.transfer, arrival))
        if len(fetch.read_offsets) >= fetch.receiver.window // 2:
            self._report_read(fetch)

    def _report_read(self, fetch: _Fetch) -> None:
        transfer, channel = fetch.receiver.transfer, fetch.channel
        if fetch.read_offsets and transfer is not None and channel is not None:
            self._credit(fetch, channel.id, KvCredit(transfer=transfer, granted=0))

    def _credit(self, fetch: _Fetch, peer: int, credit: KvCredit) -> None:
        read_offsets, fetch.read_offsets = tuple(fetch.read_offsets), []
        self.connections.send(peer, msgspec.structs.replace(credit, taken=read_offsets))

    def _copy_in(self, key: AttemptKey | None, plan: TransferPlan) -> CopyIn:
        """Returns the function that copies a payload to its blocks if this plan still lacks it, and
        else only sums it up."""
        fetch = self._fetches.get(key) if key is not None else None

        def copy_in(expected: ExpectedMessage, payload: Bytes) -> Sum:
            if fetch is None or not fetch.receiver.lacks(plan.transfer, expected.index):
                return sum_of(payload)
            at = expected.first_block - fetch.receiver.spec.first_block
            return fetch.packing.scatter(
                fetch.block_ids[at : at + expected.blocks], payload, expected
            )

        return copy_in
