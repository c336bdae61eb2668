"""What a worker's store gives to other holders and gets from them, as the KV thread drives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from common.config import KvConfig
from common.identity import AttemptKey
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.protocol import Ended
from common.kv.messages import (
    DaemonToKv,
    KvArrived,
    KvCopied,
    KvCopyAhead,
    KvDone,
    KvOffer,
    KvOrder,
    KvPrefetch,
    KvPull,
    KvRelease,
    KvTaken,
)
from common.kv.offers.copies import StoreCopies
from common.kv.offers.offered import StoreOffers
from common.kv.offers.orders import StoreOrders
from common.kv.offers.prefetches import StorePrefetches
from common.kv.offers.pulls import StorePulls, refuse_pull
from common.kv.peers.channel import Channel, WorkerIdentity
from common.kv.sides.receive import ReceiveSide
from common.kv.sides.send import SendSide
from common.kv.store.arena import Arena
from common.kv.store.promotions import Promotions
from common.kv.store.side import StoreSide
from common.kv.store.table import BlockName, StoreTable
from common.messages import KvCheckpoint, KvReport, Ticket

ANSWER_PULLS = 2
"""A holder may take so many times `pull_ms` to answer an offer: others may be before it."""

CHECKPOINTS_MAX = 256
"""Streams in one report."""


class StoreSharing:
    """Pulls by others, copies for others, copies of what others have, and what is prefetched."""

    def __init__(
        self,
        identity: WorkerIdentity,
        arena: Arena,
        sides: tuple[StoreSide, SendSide, ReceiveSide],
        config: KvConfig,
        counters: HandoffCounters,
        clock: Callable[[], float],
        *,
        tell: Callable[[KvCopied | KvDone], None],
    ) -> None:
        """`tell` takes what the daemon is told: which blocks have come, and which streams were
        copied ahead."""
        store_side, send_side, receive_side = sides
        self._send_side = send_side
        self._clock, self._store_side, self._tell = clock, store_side, tell
        self._orders: StoreOrders | None = None
        self.pulls = StorePulls(identity, arena, send_side, config, counters, clock)
        self.copies = StoreCopies(
            identity, arena, receive_side, config, counters, clock, on_copied=tell
        )
        answer_s = ANSWER_PULLS * config.store.pull_ms / 1000
        open_channel = receive_side.open_channel
        made = arena.block_bytes, answer_s, counters, clock, open_channel
        self.offers = StoreOffers(*made, on_followed=self._tell_followed)
        slots = arena.bytes.nbytes // arena.block_bytes
        self.prefetches = StorePrefetches(
            self.copies, arena.block_bytes, slots, counters, clock, on_copied=tell
        )
        receive_side.on_taken = self.offers.on_taken
        store_side.on_read = self.prefetches.on_read

    def __len__(self) -> int:
        """What is under way; pulls by others only as long as they wait for the disk, because they
        are offers of the send side then."""
        return len(self.copies) + len(self.offers) + len(self.prefetches) + self.pulls.waiting

    def share(self, table: StoreTable, below: Promotions | None = None) -> None:
        """What the store holds, by its owner. `below`: what else it has on a disk."""
        self.pulls.table = self.copies.table = self.prefetches.table = table
        self.pulls.below = self.copies.below = self.prefetches.below = below
        self._orders = StoreOrders(table, below, self._store_side.forget, self._clock)

    def copy_ahead(self, order: KvCopyAhead) -> None:
        """The blocks of this stream go to the holder of the order from now on."""
        key = (order.request_id, order.attempt)
        self._store_side.change_holder(key, order.holder)
        if order.holder is not None:
            self.offers.follow(key, order.holder, order.lag_blocks)

    def tell_disk(self, changed: Mapping[BlockName, bytes | None]) -> None:
        """Blocks that routers know by no name are left out."""
        held = {name.block_hash: ours for name, ours in changed.items() if ours}
        gone = [name.block_hash for name, ours in changed.items() if ours is None]
        self._tell(
            KvCopied(
                hashes=b"".join(held), names=b"".join(held.values()), gone=b"".join(gone), disk=True
            )
        )

    def _tell_followed(self, key: AttemptKey, held: int, why: str) -> None:
        self._tell(_copied(key, held, why))

    def on_message(self, channel: Channel, message: KvPull | KvOffer) -> None:
        """A store holds blocks as they lie in memory, so only a worker whose KV lies alike may use
        it."""
        if channel.peer is not None and not channel.peer.alike:
            refuse(self._send_side, channel, message)
        elif isinstance(message, KvPull):
            self.pulls.on_pull(channel, message)
        else:
            self.copies.on_offer(channel, message)

    def from_daemon(self, message: DaemonToKv) -> None:
        """What concerns no handoff of the message is ignored."""
        match message:
            case KvPrefetch():
                self.prefetches.on_order(message)
            case KvArrived():
                self.prefetches.on_arrived(message)
            case KvRelease():
                self.prefetches.over((message.request_id, message.attempt))
            case KvOrder() if self._orders is not None:
                self._orders.carry_out(message.action, message.ends)
            case KvCopyAhead():
                self.copy_ahead(message)

    def on_channel_closed(self, channel: Channel) -> None:
        self.pulls.on_channel_closed(channel)
        self.copies.on_channel_closed(channel)

    def on_send_ended(self, ticket: Ticket, ended: Ended) -> bool:
        """As `StorePulls.on_send_ended`."""
        return self.pulls.on_send_ended(ticket, taken=not ended.error)

    def on_receive_ended(self, ticket: Ticket, report: KvReport, ended: Ended) -> bool:
        """As `StoreCopies.on_receive_ended`."""
        return self.copies.on_receive_ended(ticket, report, ended)

    def checkpoints(self) -> tuple[KvCheckpoint, ...]:
        return self.offers.checkpoints(CHECKPOINTS_MAX)

    def tick(self) -> None:
        self.copies.tick()
        self.offers.tick()
        self.prefetches.tick()


def not_copied(order: KvCopyAhead, why: str) -> KvDone:
    """The answer of a worker that copies nothing."""
    return _copied((order.request_id, order.attempt), 0, why)


def _copied(key: AttemptKey, held: int, why: str) -> KvDone:
    request_id, attempt = key
    return KvDone(
        request_id=request_id,
        attempt=attempt,
        side="copy",
        report=KvReport(blocks=held),
        message=why,
        held=held,
    )


def refuse(send_side: SendSide, channel: Channel, message: KvPull | KvOffer) -> None:
    """This worker has no store for others, or none for that one."""
    if isinstance(message, KvPull):
        refuse_pull(send_side, channel, message, "it has no store for others")
    else:
        channel.send(KvTaken(offer=message.offer, blocks=0))
