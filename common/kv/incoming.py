"""D's shell around its `Receiver`s: connects to P (`ways.py`), posts receives, places, verifies.

Theory of operation: everything runs on the KV thread. A message is received into staging, and if
its header is what was asked it is copied to the engine's blocks, if the receiver still wants it
there. The copy tells the digest, and only if that is right does the receiver count the message: the
engine, which waits for the whole handoff, never reads a block that was not verified. A P of this
host may lend a message instead (`lent.py`): the slot is answered with word of where it lies, which
needs no staging. An ended handoff can leave receives that P still owes an answer; their buffers
stay out of the pool until it comes, and a P that does not answer in `ORPHAN_S` loses the link,
which completes them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from common.errors import BatonError, Code
from common.kv.control import Channel, Heard, Identity
from common.kv.digest import (
    HEADER_BYTES,
    INDEX_BITS,
    LOST,
    Absorb,
    Expected,
    Verdict,
    judge,
    lent_at,
)
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
    Post,
    Posted,
    ReceiveEvent,
    Start,
    Tell,
    Tick,
)
from common.kv.kernel import Bytes, Sum, sum_of
from common.kv.layout import KvMemory
from common.kv.lent import lent_message, take
from common.kv.messages import KvCredit, KvRefused
from common.kv.packing import Packing
from common.kv.plan import Plan, shape_of
from common.kv.ranks import address_of
from common.kv.staging import Buffer, Staging
from common.kv.ucx import data_tag
from common.kv.ways import Traveller, Ways
from common.messages import KvHold, KvReport, Ticket

ORPHAN_S = 5.0
OnEnded = Callable[[Ticket, KvReport, Ended], None]


@dataclass(slots=True)
class _Fetch:
    """`taken`: offsets of lent messages that P does not know to be read."""

    receiver: Receiver
    block_ids: list[int]
    began: float
    channel: Channel | None = None
    taken: list[int] = field(default_factory=list)


def _nobody() -> None:
    """Hears that a connection is lost."""


class Incoming:
    """Fetches tickets for this engine. `staging`: for what comes over wires. `payload_bytes`: the
    largest message, lent ones too. `on_ended` is called once per `fetch`, `on_lost` when a
    connection is gone or did not come about."""

    def __init__(
        self,
        identity: Identity,
        memory: KvMemory,
        staging: Staging,
        *,
        payload_bytes: int,
        tally: Tally,
        on_ended: OnEnded,
        clock: Callable[[], float],
        ways: Callable[[Traveller], Ways],
    ) -> None:
        self._identity = identity
        self._packing = Packing(memory, payload_bytes)
        self._shape = shape_of(memory.geometry)
        self._staging = staging
        self._tally = tally
        self._on_ended = on_ended
        self._clock = clock
        self.on_lost: Callable[[], None] = _nobody
        self._fetches: dict[Key, _Fetch] = {}
        self._by_transfer: dict[int, Key] = {}
        self._owed: dict[tuple[int, int], tuple[Channel, float]] = {}
        self._next_transfer = int.from_bytes(os.urandom(8), "little") >> (INDEX_BITS + 2)
        self.ways = ways(self)

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
            self._say_taken(fetch)
        awaited = {each.channel.id for each in self._fetches.values() if each.channel is not None}
        self.ways.tick(now, awaited)
        for (transfer, _), (channel, until) in list(self._owed.items()):
            if transfer not in self._by_transfer and until <= now:
                channel.close("granted messages were never answered")

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
        return len(self._fetches) + len(self._owed) + self.ways.opening()

    def close(self) -> None:
        for key in list(self._fetches):
            self.cancel(key, "the engine closes")
        self.ways.close()

    # ------------------------------------------------------------ channels

    def connect(self, address: str) -> None:
        """Ahead of need; a failure only means that the first handoff connects again."""
        with contextlib.suppress(BatonError, ValueError):
            self.ways.connect(address_of(address, self._identity.rank))

    def _connect(self, key: Key) -> None:
        try:
            kv_address = self._fetches[key].receiver.ticket.kv_address
            self.ways.reach(key, address_of(kv_address, self._identity.rank))
        except (BatonError, ValueError) as error:
            self.unreachable(key, str(error), isinstance(error, ValueError))

    def unreachable(self, key: Key, why: str, final: bool) -> None:
        """As `Traveller`; so are the next three."""
        self._feed(key, ConnectFailed(why, final=final))

    def reached(self, key: Key, channel: Channel) -> None:
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
        self._feed(key, Connected(channel.id, transfer, lent=channel.borrowed is not None))

    def gone(self, channel: Channel) -> None:
        self.on_lost()
        for key in list(self._fetches):
            self._feed(key, PeerLost(channel.id))

    def heard(self, channel: Channel, message: Heard) -> None:
        if not isinstance(message, KvRefused):
            channel.close("a message that no prefill worker sends")
            return
        key = self._by_transfer.get(message.transfer)
        if key is not None:
            self._feed(key, message)

    # ------------------------------------------------------------ receivers

    def _feed(self, key: Key, event: ReceiveEvent) -> None:
        fetch = self._fetches.get(key)
        if fetch is None:
            return
        receiver = fetch.receiver
        before = receiver.transfer
        actions = receiver.handle(event, self._clock())
        if before is not None and receiver.transfer != before:
            self._by_transfer.pop(before, None)
            fetch.taken.clear()
        if receiver.state in RECEIVE_TERMINAL:
            del self._fetches[key]
        self._run(key, fetch, actions)

    def _run(self, key: Key, fetch: _Fetch, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Connect():
                    self._connect(key)
                case Post():
                    self._post(key, fetch, action)
                case Tell(peer, KvCredit() as credit):
                    self._credit(fetch, peer, credit)
                case Tell(peer, message):
                    self.ways.tell(peer, message)
                case Ended():
                    self._on_ended(fetch.receiver.ticket, fetch.receiver.report(), action)

    def _post(self, key: Key, fetch: _Fetch, post: Post) -> None:
        """P is told first, and posting takes no longer than the word to it."""
        channel, plan, first = fetch.channel, post.plan, post.first
        if channel is None:
            return
        buffers = self._spared(post, lent=channel.borrowed is not None)
        if post.due and not buffers:
            self._claim(key, channel, plan, first)
            return
        self._feed(key, Posted(plan.transfer, first + len(buffers)))
        for slot, buffer in enumerate(buffers, first):
            self._receive(channel, plan, slot, buffer)

    def _spared(self, post: Post, *, lent: bool) -> list[Buffer]:
        """Word of where a message is lent needs no staging. A message does, for as long as P
        computes it: with half of staging in use a transfer gets one buffer at a time, or those that
        wait for one P would keep this worker from another's."""
        wanted = post.upto - post.first
        if lent:
            return [np.empty(HEADER_BYTES, np.uint8) for _ in range(wanted)]
        buffers: list[Buffer] = []
        while len(buffers) < wanted and (self._staging.ample or (post.due and not buffers)):
            buffer = self._staging.take()
            if buffer is None:
                break
            buffers.append(buffer)
        return buffers

    def _claim(self, key: Key, channel: Channel, plan: Plan, slot: int) -> None:
        def use(buffer: Buffer) -> bool:
            if self._by_transfer.get(plan.transfer) != key or channel.closed:
                return False
            self._receive(channel, plan, slot, buffer)
            self._feed(key, Posted(plan.transfer, slot + 1))
            return True

        self._staging.claim(use)

    def _receive(self, channel: Channel, plan: Plan, slot: int, buffer: Buffer) -> None:
        """Any one message of the plan may come, or word of where it is lent."""
        message = buffer[: HEADER_BYTES + plan.payload_bytes_max]
        message[:HEADER_BYTES] = 0
        owed = (plan.transfer, slot)
        self._owed[owed] = (channel, self._clock() + ORPHAN_S)

        def done(error: str | None) -> None:
            del self._owed[owed]
            key = self._by_transfer.get(plan.transfer)
            offset = lent_at(message, *owed) if error is None else None
            if offset is not None:
                self._take(key, channel, plan, slot, offset)
            else:
                absorb = self._absorb(key, plan)
                arrival = LOST if error is not None else judge(message, *owed, plan.planned, absorb)
                self._tally.stale += key is None and arrival.verdict is Verdict.OK
                if key is not None:
                    self._feed(key, Arrived(plan.transfer, arrival))
            if channel.borrowed is None:
                self._staging.give(buffer)
            channel.heard_something()
            if error is not None:
                channel.close(f"a receive failed in the transport: {error}")

        channel.link.receive(message, data_tag(*owed, INDEX_BITS), done)

    def _take(self, key: Key | None, channel: Channel, plan: Plan, slot: int, offset: int) -> None:
        if key is None:
            self._tally.stale += 1
            return
        fetch = self._fetches[key]
        lent = lent_message(channel.borrowed, offset, plan.payload_bytes_max)
        arrival = take(lent, plan.transfer, slot, plan.planned, self._absorb(key, plan))
        fetch.taken.append(offset)
        self._feed(key, Arrived(plan.transfer, arrival))
        if len(fetch.taken) >= fetch.receiver.window // 2:
            self._say_taken(fetch)

    def _say_taken(self, fetch: _Fetch) -> None:
        transfer, channel = fetch.receiver.transfer, fetch.channel
        if fetch.taken and transfer is not None and channel is not None:
            self._credit(fetch, channel.id, KvCredit(transfer=transfer, granted=0))

    def _credit(self, fetch: _Fetch, peer: int, credit: KvCredit) -> None:
        taken, fetch.taken = tuple(fetch.taken), []
        self.ways.tell(peer, msgspec.structs.replace(credit, taken=taken))

    def _absorb(self, key: Key | None, plan: Plan) -> Absorb:
        """To its blocks with what this plan still lacks."""
        fetch = self._fetches.get(key) if key is not None else None

        def absorb(what: Expected, payload: Bytes) -> Sum:
            if fetch is None or not fetch.receiver.lacks(plan.transfer, what.index):
                return sum_of(payload)
            at = what.first_block - fetch.receiver.wanted.first_block
            return self._packing.scatter(fetch.block_ids[at : at + what.blocks], payload, what)

        return absorb
