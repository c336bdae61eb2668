"""D's shell around its `Receiver`s: connects to P, posts receives, verifies, places.

Theory of operation: one channel per P address, opened at need and kept. Everything runs on the KV
thread. A message is received into staging, checked against what was asked, and only then copied to
the engine's blocks, by the receiver whose transfer is still the current one. An ended handoff can
leave receives that P still owes an answer; their buffers stay out of the pool until it comes, and a
P that does not answer in `ORPHAN_S` loses the link, which completes them. While a fetch waits, its
P is asked whether it is there (`pulse.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.errors import BatonError, Code
from common.kv.control import Channel, Heard, Identity
from common.kv.digest import HEADER_BYTES, INDEX_BITS, LOST, Expected, Verdict, judge
from common.kv.handoff.desk import Key
from common.kv.handoff.receiver import Receiver, Wanted
from common.kv.handoff.tally import Tally
from common.kv.handoff.words import (
    RECEIVE_TERMINAL,
    Action,
    Arrived,
    Cancel,
    Connect,
    Connected,
    ConnectFailed,
    Ended,
    PeerLost,
    Place,
    Post,
    Posted,
    ReceiveEvent,
    Start,
    Tell,
    Tick,
)
from common.kv.layout import KvMemory
from common.kv.messages import KvPing, KvRefused
from common.kv.packing import Packing
from common.kv.plan import Plan, shape_of
from common.kv.pulse import Look, Pulse
from common.kv.ranks import address_of
from common.kv.staging import Buffer, Staging
from common.kv.ucx import Link, data_tag
from common.messages import KvHold, KvReport, Ticket

CONNECT_S = 1.0
ORPHAN_S = 5.0
OnEnded = Callable[[Ticket, KvReport, Ended], None]
Open = Callable[[str], Link]


@dataclass(slots=True)
class _Fetch:
    receiver: Receiver
    block_ids: list[int]
    began: float
    channel: Channel | None = None


@dataclass(slots=True)
class _Way:
    """The channel to one P address; `waiting` for it to open until `deadline`. `lanes`: what UCX
    chose for it."""

    channel: Channel
    deadline: float
    pulse: Pulse
    waiting: list[Key] = field(default_factory=list)
    lanes: tuple[str, ...] = ()


def _nobody() -> None:
    """Hears that a connection is lost."""


class Incoming:
    """Fetches tickets for this engine. `on_ended` is called once per `fetch`, `on_lost` when a
    connection is gone or did not come about."""

    def __init__(
        self,
        identity: Identity,
        memory: KvMemory,
        staging: Staging,
        *,
        tally: Tally,
        open_link: Open,
        on_ended: OnEnded,
        clock: Callable[[], float],
        answer_seconds: float,
    ) -> None:
        self._identity = identity
        self._answer_seconds = answer_seconds
        self._packing = Packing(memory, staging.payload_bytes)
        self._shape = shape_of(memory.geometry)
        self._staging = staging
        self._tally = tally
        self._open_link = open_link
        self._on_ended = on_ended
        self._clock = clock
        self.on_lost: Callable[[], None] = _nobody
        self._fetches: dict[Key, _Fetch] = {}
        self._by_transfer: dict[int, Key] = {}
        self._ways: dict[str, _Way] = {}
        self._channels: dict[int, Channel] = {}
        self._owed: dict[tuple[int, int], tuple[Channel, float]] = {}
        self._next_transfer = int.from_bytes(os.urandom(8), "little") >> (INDEX_BITS + 2)
        self._next_peer = 1

    def lanes(self) -> dict[str, tuple[str, ...]]:
        """By the name of each P that a connection is open to."""
        peers = [(way.channel.peer, way.lanes) for way in self._ways.values()]
        return {peer.name: lanes for peer, lanes in peers if peer is not None}

    def linked(self) -> tuple[str, ...]:
        """Addresses that a connection is open to."""
        return tuple(at for at, way in self._ways.items() if way.channel.peer is not None)

    # ------------------------------------------------------------ from the engine and the daemon

    def fetch(self, ticket: Ticket, wanted: Wanted, block_ids: Sequence[int]) -> None:
        key = (ticket.request_id, ticket.attempt)
        if key in self._fetches:
            ended = Ended(Code.DUPLICATE_REQUEST, "this ticket is being fetched already")
            self._on_ended(ticket, KvReport(), ended)
            return
        receiver = Receiver(ticket, wanted, self._shape)
        self._fetches[key] = _Fetch(receiver, list(block_ids), self._clock())
        self._feed(key, Start())

    def cancel(self, key: Key, reason: str) -> None:
        """Idempotent."""
        self._feed(key, Cancel(reason))

    def tick(self) -> None:
        now = self._clock()
        for key, fetch in list(self._fetches.items()):
            if fetch.receiver.wake_at <= now:
                self._feed(key, Tick())
        for way in list(self._ways.values()):
            if way.channel.peer is None and way.deadline <= now:
                way.channel.close("no connection within the time limit")
        self._feel(now)
        for (transfer, _), (channel, until) in list(self._owed.items()):
            if transfer not in self._by_transfer and until <= now:
                channel.close("granted messages were never answered")

    def _feel(self, now: float) -> None:
        """Whether those that something is awaited from are there."""
        awaited = {each.channel.id for each in self._fetches.values() if each.channel is not None}
        for way in list(self._ways.values()):
            channel = way.channel
            if channel.peer is None or channel.id not in awaited:
                continue
            look, channel.spoke = way.pulse.look(now, spoke=channel.spoke), False
            if look is Look.ASK:
                channel.tell(KvPing())
            elif look is Look.LOST:
                channel.close("it does not answer")

    def holds(self, now: float) -> list[KvHold]:
        block_bytes = self._shape.block_bytes
        return [
            KvHold(
                request_id=key[0],
                attempt=key[1],
                peer=fetch.receiver.ticket.prefill,
                side="receive",
                blocks=len(fetch.block_ids),
                bytes=len(fetch.block_ids) * block_bytes,
                lease_left_ms=max(0.0, fetch.receiver.wanted.deadline - now) * 1000,
                age_ms=(now - fetch.began) * 1000,
            )
            for key, fetch in self._fetches.items()
        ]

    def __len__(self) -> int:
        opening = sum(1 for way in self._ways.values() if way.channel.peer is None)
        return len(self._fetches) + len(self._owed) + opening

    def close(self) -> None:
        for key in list(self._fetches):
            self.cancel(key, "the engine closes")
        for channel in list(self._channels.values()):
            channel.close("the engine closes")

    # ------------------------------------------------------------ channels

    def connect(self, address: str) -> None:
        """Ahead of need; a failure only means that the first handoff connects again."""
        with contextlib.suppress(BatonError, ValueError):
            self._way(address_of(address, self._identity.rank))

    def _connect(self, key: Key) -> None:
        try:
            kv_address = self._fetches[key].receiver.ticket.kv_address
            way = self._way(address_of(kv_address, self._identity.rank))
        except (BatonError, ValueError) as error:
            self._feed(key, ConnectFailed(str(error), final=isinstance(error, ValueError)))
            return
        if way.channel.peer is None:
            way.waiting.append(key)
        else:
            self._connected(key, way.channel)

    def _way(self, address: str) -> _Way:
        way = self._ways.get(address)
        if way is None:
            link = self._open_link(address)
            peer_id, self._next_peer = self._next_peer, self._next_peer + 1
            channel = Channel(
                peer_id,
                link,
                self._identity,
                on_open=lambda _: self._opened(address),
                on_message=self._heard,
                on_closed=lambda gone, why, refused: self._gone(address, gone, why, refused),
            )
            self._channels[peer_id] = channel
            now = self._clock()
            way = self._ways[address] = _Way(
                channel, now + CONNECT_S, Pulse(now, self._answer_seconds)
            )
        return way

    def _opened(self, address: str) -> None:
        way = self._ways[address]
        way.lanes = way.channel.link.lanes()
        waiting, way.waiting = way.waiting, []
        for key in waiting:
            self._connected(key, way.channel)

    def _connected(self, key: Key, channel: Channel) -> None:
        fetch, peer = self._fetches.get(key), channel.peer
        if fetch is None or peer is None:
            return
        ticket = fetch.receiver.ticket
        if (peer.name, peer.incarnation) != (ticket.prefill, ticket.prefill_incarnation):
            why = f"{ticket.kv_address} is {peer.name} in another incarnation than the ticket's"
            self._feed(key, ConnectFailed(why, final=True))
            return
        transfer, self._next_transfer = self._next_transfer, self._next_transfer + 1
        fetch.channel = channel
        self._by_transfer[transfer] = key
        self._feed(key, Connected(channel.id, transfer))

    def _gone(self, address: str, channel: Channel, why: str, refused: bool) -> None:
        self._channels.pop(channel.id, None)
        way = self._ways.get(address)
        if way is not None and way.channel is channel:
            del self._ways[address]
            for key in way.waiting:
                self._feed(key, ConnectFailed(why, final=refused))
            self.on_lost()
        for key in list(self._fetches):
            self._feed(key, PeerLost(channel.id))

    def _heard(self, channel: Channel, message: Heard) -> None:
        if not isinstance(message, KvRefused):
            channel.close("a message that no prefill worker sends")
            return
        key = self._by_transfer.get(message.transfer)
        if key is not None:
            self._feed(key, message)

    # ------------------------------------------------------------ receivers

    def _feed(self, key: Key, event: ReceiveEvent, arrived: Buffer | None = None) -> None:
        fetch = self._fetches.get(key)
        if fetch is None:
            return
        receiver = fetch.receiver
        before = receiver.transfer
        actions = receiver.handle(event, self._clock())
        if before is not None and receiver.transfer != before:
            self._by_transfer.pop(before, None)
        if receiver.state in RECEIVE_TERMINAL:
            del self._fetches[key]
        self._run(key, fetch, actions, arrived)

    def _run(
        self, key: Key, fetch: _Fetch, actions: Sequence[Action], arrived: Buffer | None
    ) -> None:
        for action in actions:
            match action:
                case Connect():
                    self._connect(key)
                case Post(_, plan, first, upto):
                    self._post(key, fetch, plan, first, upto)
                case Tell(peer, message) if peer in self._channels:
                    self._channels[peer].tell(message)
                case Place(_, what) if arrived is not None:
                    self._place(fetch, what, arrived)
                case Ended():
                    self._on_ended(fetch.receiver.ticket, fetch.receiver.report(), action)

    def _post(self, key: Key, fetch: _Fetch, plan: Plan, first: int, upto: int) -> None:
        """Posts what staging allows at once, the rest as buffers come free, in order."""
        channel = fetch.channel
        if channel is None:
            return
        slot = first
        while slot < upto and (buffer := self._staging.take()) is not None:
            self._receive(channel, plan, slot, buffer)
            slot += 1
        if slot > first:
            self._feed(key, Posted(plan.transfer, slot))
        if slot < upto:
            self._claim(key, channel, plan, slot, upto)

    def _claim(self, key: Key, channel: Channel, plan: Plan, slot: int, upto: int) -> None:
        def use(buffer: Buffer) -> bool:
            if self._by_transfer.get(plan.transfer) != key or channel.closed:
                return False
            self._receive(channel, plan, slot, buffer)
            self._feed(key, Posted(plan.transfer, slot + 1))
            if slot + 1 < upto:
                self._claim(key, channel, plan, slot + 1, upto)
            return True

        self._staging.claim(use)

    def _receive(self, channel: Channel, plan: Plan, slot: int, buffer: Buffer) -> None:
        """Any one message of the plan may come."""
        message = buffer[: HEADER_BYTES + plan.payload_bytes_max]
        message[:HEADER_BYTES] = 0
        owed = (plan.transfer, slot)
        self._owed[owed] = (channel, self._clock() + ORPHAN_S)

        def planned(index: int) -> Expected | None:
            return plan.message(index) if index < plan.messages else None

        def done(error: str | None) -> None:
            del self._owed[owed]
            key = self._by_transfer.get(plan.transfer)
            arrival = LOST if error is not None else judge(message, *owed, planned)
            if key is not None:
                self._feed(key, Arrived(plan.transfer, arrival), message)
            elif arrival.verdict is Verdict.OK:
                self._tally.stale += 1
            self._staging.give(buffer)
            channel.spoke = True
            if error is not None:
                channel.close(f"a receive failed in the transport: {error}")

        channel.link.receive(message, data_tag(*owed, INDEX_BITS), done)

    def _place(self, fetch: _Fetch, what: Expected, message: Buffer) -> None:
        at = what.first_block - fetch.receiver.wanted.first_block
        payload = message[HEADER_BYTES : what.message_bytes]
        self._packing.scatter(fetch.block_ids[at : at + what.blocks], payload, what)
