"""What a worker's store gives to other holders and gets from them, as the KV thread drives it."""

from __future__ import annotations

from collections.abc import Callable

from common.config import KvConfig
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.protocol import Ended
from common.kv.messages import (
    DaemonToKv,
    KvArrived,
    KvCopied,
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
from common.kv.receive import ReceiveSide
from common.kv.send import SendSide
from common.kv.store.arena import Arena
from common.kv.store.promotions import Promotions
from common.kv.store.table import StoreTable
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
        sides: tuple[SendSide, ReceiveSide],
        config: KvConfig,
        counters: HandoffCounters,
        clock: Callable[[], float],
        *,
        on_copied: Callable[[KvCopied], None],
        on_dropped: Callable[[list[bytes]], None],
    ) -> None:
        """`on_copied`: as in `StoreCopies`. `on_dropped`: as in `StoreOrders`."""
        send_side, receive_side = sides
        self._clock, self._on_dropped = clock, on_dropped
        self._orders: StoreOrders | None = None
        self.pulls = StorePulls(identity, arena, send_side, config, counters, clock)
        self.copies = StoreCopies(
            identity, arena, receive_side, config, counters, clock, on_copied=on_copied
        )
        answer_s = ANSWER_PULLS * config.store.pull_ms / 1000
        open_channel = receive_side.open_channel
        self.offers = StoreOffers(arena.block_bytes, answer_s, counters, clock, open_channel)
        slots = arena.bytes.nbytes // arena.block_bytes
        self.prefetches = StorePrefetches(
            self.copies, arena.block_bytes, slots, counters, clock, on_copied=on_copied
        )
        receive_side.on_taken = self.offers.on_taken

    def __len__(self) -> int:
        """What is under way; pulls by others only as long as they wait for the disk, because they
        are offers of the send side then."""
        return len(self.copies) + len(self.offers) + len(self.prefetches) + self.pulls.waiting

    def share(self, table: StoreTable, below: Promotions | None = None) -> None:
        """What the store holds, by its owner. `below`: what else it has on a disk."""
        self.pulls.table = self.copies.table = self.prefetches.table = table
        self.pulls.below = self.copies.below = below
        self._orders = StoreOrders(table, below, self._on_dropped, self._clock)


    def on_message(self, channel: Channel, message: KvPull | KvOffer) -> None:
        if isinstance(message, KvPull):
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


def refuse(send_side: SendSide, channel: Channel, message: KvPull | KvOffer) -> None:
    """This worker has no store for others."""
    if isinstance(message, KvPull):
        refuse_pull(send_side, channel, message, "it has no store for others")
    else:
        channel.send(KvTaken(offer=message.offer, blocks=0))
