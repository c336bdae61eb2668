"""D's side of the handoffs of one engine: the shell around its receivers. It connects to P, posts
receives, places what arrives and verifies it.

Theory of operation: everything runs on the KV thread. Each fetch has a `Receiver`
(`handoff/receiver.py`), whose actions are done here, and counts a message only if its digest is
right (`arrivals.py`). The engine waits for the whole handoff, so it never reads a block that was
not verified.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Sequence

import msgspec

from common.errors import BatonError, Code
from common.identity import AttemptKey, attempt_of_part
from common.kv.checksum.header import INDEX_BITS, Arrival
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
from common.kv.layout import Mark
from common.kv.messages import KvCredit, KvRefused, KvTaken
from common.kv.packing import Packing
from common.kv.peers.channel import Channel, HandoffMessage
from common.kv.peers.connections import ConnectionListener, Connections
from common.kv.plan import TransferPlan
from common.kv.sides.arrivals import Arrivals, Fetch, receive_of
from common.kv.staging.pool import Buffer, Pools, StagingPool, bare_buffer
from common.messages import KvHold, KvReport, Ticket
from common.net.kv_address import address_of, parts_of_ranks, rank_addresses

OnEnded = Callable[[Ticket, KvReport, Ended], None]


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
        pools: Pools,
        *,
        counters: HandoffCounters,
        on_ended: OnEnded,
        clock: Callable[[], float],
        make_connections: Callable[[ConnectionListener], Connections],
    ) -> None:
        """`packing`: of the engine's memory as it lies. `pools`: buffers for messages that P sends.
        `on_ended` is called once for each `fetch`."""
        self._rank = rank
        self._packing = packing
        self._pools = pools
        self._on_ended = on_ended
        self._clock = clock
        self._uniform = secrets.SystemRandom().random
        #: Called when a connection is gone or could not be opened.
        self.on_lost: Callable[[], None] = _ignore_loss
        #: Called when a holder has answered an offer.
        self.on_taken: Callable[[Channel, KvTaken], None] = _offer_nothing
        self._fetches: dict[AttemptKey, Fetch] = {}
        self._by_transfer: dict[int, AttemptKey] = {}
        self._arrivals = Arrivals(self._fetch_of, self._arrived, counters, clock)
        self._next_transfer = int.from_bytes(os.urandom(8), "little") >> (INDEX_BITS + 2)
        self.connections = make_connections(self)

    # ------------------------------------------------------------ from the engine and the daemon

    def fetch(
        self,
        ticket: Ticket,
        spec: FetchSpec,
        block_ids: Sequence[int],
        packing: Packing | None = None,
        after: Mark | None = None,
    ) -> None:
        """`packing`: of the memory that the blocks are in; None: in the engine's. `after`: when the
        blocks may be written."""
        key = (ticket.request_id, ticket.attempt)
        if key in self._fetches:
            ended = Ended(Code.DUPLICATE_REQUEST, "this ticket is being fetched already")
            self._on_ended(ticket, KvReport(), ended)
            return
        receiver = Receiver(ticket, spec, self._uniform)
        packing = self._packing if packing is None else packing
        self._fetches[key] = Fetch(receiver, list(block_ids), self._clock(), packing, after)
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
        self._arrivals.tick(now)

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
        return len(self._fetches) + len(self._arrivals) + self.connections.opening_count()

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
        # What is pulled comes out of a store, which is host memory.
        pulls = bool(fetch.receiver.spec.hashes)
        direct = channel.direct and fetch.packing.on_card and not pulls
        loan = channel.remote_segment is not None and not direct
        self._feed(key, Connected(channel.id, transfer, loan=loan, direct=direct))

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

    def _run(self, key: AttemptKey, fetch: Fetch, actions: Sequence[Action]) -> None:
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
                    fetch.ended = action
                    self._finish(fetch)

    def _post(self, key: AttemptKey, fetch: Fetch, post: Post) -> None:
        """Grants first and posts then, because posting takes no longer than the message to P."""
        channel, plan, first = fetch.channel, post.plan, post.first
        if channel is None:
            return
        pool = self._pool_for(plan, channel)
        buffers = _available_buffers(pool, post)
        if post.due and not buffers and pool is not None:
            self._claim(key, channel, plan, first, pool)
            return
        self._feed(key, Posted(plan.transfer, first + len(buffers)))
        for slot, buffer in enumerate(buffers, first):
            self._arrivals.post(receive_of(channel, plan, slot, pool, buffer))

    def _pool_for(self, plan: TransferPlan, channel: Channel) -> StagingPool | None:
        """None: P loans its messages."""
        loaned = channel.remote_segment is not None and not plan.direct
        return None if loaned else self._pools.of(direct=plan.direct)

    def _claim(
        self, key: AttemptKey, channel: Channel, plan: TransferPlan, slot: int, pool: StagingPool
    ) -> None:
        def use(buffer: Buffer) -> bool:
            if self._by_transfer.get(plan.transfer) != key or channel.closed:
                return False
            self._arrivals.post(receive_of(channel, plan, slot, pool, buffer))
            self._feed(key, Posted(plan.transfer, slot + 1))
            return True

        pool.claim(use)

    def _fetch_of(self, transfer: int) -> Fetch | None:
        key = self._by_transfer.get(transfer)
        return self._fetches.get(key) if key is not None else None

    def _arrived(self, fetch: Fetch, transfer: int, arrival: Arrival, offset: int | None) -> None:
        """`offset`: of a loaned message."""
        if offset is not None:
            fetch.read_offsets.append(offset)
        key = self._by_transfer.get(transfer)
        if key is not None:
            self._feed(key, Arrived(transfer, arrival))
        if fetch.ended is not None:
            self._finish(fetch)
        if offset is not None and len(fetch.read_offsets) >= fetch.receiver.window // 2:
            self._report_read(fetch)

    def _finish(self, fetch: Fetch) -> None:
        """The engine may use the blocks, or give them to others, once nothing is copied there."""
        ended = fetch.ended
        if ended is not None and not fetch.copying:
            fetch.ended = None
            self._on_ended(fetch.receiver.ticket, fetch.receiver.report(), ended)

    def _report_read(self, fetch: Fetch) -> None:
        transfer, channel = fetch.receiver.transfer, fetch.channel
        if fetch.read_offsets and transfer is not None and channel is not None:
            self._credit(fetch, channel.id, KvCredit(transfer=transfer, granted=0))

    def _credit(self, fetch: Fetch, peer: int, credit: KvCredit) -> None:
        read_offsets, fetch.read_offsets = tuple(fetch.read_offsets), []
        self.connections.send(peer, msgspec.structs.replace(credit, taken=read_offsets))


def _available_buffers(pool: StagingPool | None, post: Post) -> list[Buffer]:
    """Buffers to post now. An offset of a loaned message needs no staging buffer. A message needs
    one, for as long as P takes to compute it: with half of the pool in use a transfer gets one
    buffer at a time, or those that wait for one P would keep this worker from another's."""
    count = post.upto - post.first
    if pool is None:
        return [bare_buffer() for _ in range(count)]
    buffers: list[Buffer] = []
    while len(buffers) < count and (pool.half_free or (post.due and not buffers)):
        buffer = pool.acquire()
        if buffer is None:
            break
        buffers.append(buffer)
    return buffers
