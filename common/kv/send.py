"""P's side of the handoffs of one engine: the shell around the ticket table. It copies blocks to
staging and sends them.

Theory of operation: the engine's connector offers a ticket and then reports, chunk by chunk, which
of the prompt's blocks hold KV. Independently D asks for blocks and grants slots, each of which is
a receive that D has posted. Both become events of the ticket table (`handoff/ticket_table.py`),
which answers with actions: get a staging buffer for a message, then copy its blocks there and send
it to a slot.

Everything here runs on the KV thread, except `withdraw` and `sent_bytes`. The engine's thread calls
`withdraw` when it takes blocks back before a handoff has ended (preemption): it waits for a copy in
progress, and after it no block of that request is read. Data once staged no longer needs the
engine's blocks. To a D that has mapped P's shared segment only the offset of a message is sent, and
its buffer stays loaned until D has read it or the transfer ends (`staging/loans.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from common.identity import AttemptKey
from common.kv.checksum.header import (
    HEADER_BYTES,
    INDEX_BITS,
    NOT_YET,
    ExpectedMessage,
    write_header,
    write_loan,
    write_void,
)
from common.kv.compression.policy import CompressionChooser
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.lease import Tombstones
from common.kv.handoff.protocol import (
    Computed,
    Ended,
    ForSender,
    FromPeer,
    HandOver,
    LayersComputed,
    Offer,
    PeerLost,
    Release,
    SendControl,
    SendData,
    SendVoid,
    Stage,
    Staged,
    Tick,
    TicketEvent,
)
from common.kv.handoff.ticket_table import TOMBSTONES_MAX, TicketTable
from common.kv.layout import KvMemory
from common.kv.messages import KvAbort, KvCredit, KvMapped, KvReady, KvReleased
from common.kv.packing import Packing
from common.kv.peers.channel import Channel, HandoffMessage
from common.kv.plan import FP8
from common.kv.staging.loans import Loans, invalidate_header
from common.kv.staging.pool import Buffer, StagingPool
from common.kv.transport.ucx import data_tag
from common.messages import KvHold, KvReport, Ticket

OnEnded = Callable[[Ticket, KvReport, Ended], None]


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Where the blocks of a prompt lie that are not the engine's."""

    packing: Packing
    judge: Callable[[range], bool]
    """Whether these blocks of the prompt, which have been copied, were what they should be."""


@dataclass(slots=True)
class _OfferedPrompt:
    """What P holds for one ticket."""

    ticket: Ticket
    """Names the attempt that the engine knows, which of a moved stream is the one before."""
    blocks: list[int] = field(default_factory=list)
    """The ids of the prompt's blocks; empty once the engine took them back."""
    messages: int = 0
    payload_bytes: int = 0
    """Payload given to the transport or loaned."""
    sent_bytes: int = 0
    """Payload that the transport has sent, or of which the offset was sent."""
    early_bytes: int | None = None
    """`sent_bytes` when the prefill ended; None before."""
    transfer: int | None = None
    """The transfer that `fp8` was chosen for."""
    fp8: bool = False
    raw_bytes: int = 0
    """As `payload_bytes`, before compression."""
    compression: str = ""
    stored: StoredBlocks | None = None
    """None for the engine's blocks."""


class SendSide:
    """Serves the tickets that this engine offers."""

    def __init__(
        self,
        tickets: TicketTable,
        memory: KvMemory,
        pool: StagingPool,
        *,
        counters: HandoffCounters,
        chooser: CompressionChooser,
        on_ended: OnEnded,
        clock: Callable[[], float],
        canonical: Mapping[str, Packing],
    ) -> None:
        """`on_ended` is called once for each call of `offer`. `canonical`: of the same memory in
        the canonical form, by `Ticket.element`."""
        self._tickets = tickets
        self._canonical = canonical
        self._pool = pool
        self._loans = Loans(pool)
        self._counters = counters
        self._packing = Packing(memory, pool.payload_bytes)
        self._chooser = chooser
        self._on_ended = on_ended
        self._clock = clock
        #: Connections by id, of every D that has asked for something.
        self._channels: dict[int, Channel] = {}
        self._prompts: dict[AttemptKey, _OfferedPrompt] = {}
        #: Guards the block ids of every prompt, and is held during a copy.
        self._copying = threading.Lock()
        #: How often the blocks of an attempt were withdrawn.
        self._generations: Tombstones[AttemptKey, int] = Tombstones(TOMBSTONES_MAX)

    def offer(self, ticket: Ticket, blocks: int, stored: StoredBlocks | None = None) -> None:
        """The prompt's KV is or will be in the engine, or is `stored`."""
        key = (ticket.request_id, ticket.attempt)
        self._prompts.setdefault(key, _OfferedPrompt(ticket, stored=stored))
        self._handle(Offer(ticket, blocks))

    def offers(self, key: AttemptKey) -> bool:
        """Whether something is held for this attempt."""
        return key in self._prompts

    def has_ended(self, key: AttemptKey) -> bool:
        """Whether nothing is held any more for this attempt, as far as is remembered."""
        return self._tickets.has_ended(key)

    def hand_over(self, kept: AttemptKey, ticket: Ticket) -> None:
        """What is offered for `kept`, to nobody, is for the D of this ticket. It still ends as
        `kept`."""
        key = (ticket.request_id, ticket.attempt)
        prompt = self._prompts[key] = self._prompts.pop(kept)
        prompt.ticket = msgspec.structs.replace(ticket, attempt=kept[1])
        form = self._canonical.get(ticket.element) if ticket.canonical else None
        parts = form.blocks // self._packing.blocks if form is not None else 1
        with self._copying:
            whole = prompt.blocks
            prompt.blocks = [one * parts + part for one in whole for part in range(parts)]
        self._handle(HandOver(kept, ticket, parts))
        self._handle(ForSender(key, Computed(len(prompt.blocks))))

    def progress(
        self, key: AttemptKey, block_ids: Sequence[int], computed: int, generation: int
    ) -> None:
        """`block_ids`: all blocks of the prompt that are allocated; the first `computed` hold KV.
        `generation`: what the last `withdraw` before this call returned; a call that crossed a
        later one is ignored."""
        if self._set_blocks(key, block_ids, generation):
            self._handle(ForSender(key, Computed(min(computed, len(block_ids)))))

    def layers_computed(
        self, key: AttemptKey, block_ids: Sequence[int], blocks: int, layers: int, generation: int
    ) -> None:
        """As `progress`, but only the first `layers` layers of the first `blocks` hold KV."""
        if self._set_blocks(key, block_ids, generation):
            event = LayersComputed(min(blocks, len(block_ids)), layers)
            self._handle(ForSender(key, event))

    def prefill_ended(self, key: AttemptKey, sent_bytes: int) -> None:
        """Only the first call counts. `sent_bytes`: what `sent_bytes()` returned at that moment."""
        prompt = self._prompts.get(key)
        if prompt is not None and prompt.early_bytes is None:
            prompt.early_bytes = sent_bytes

    def sent_bytes(self, key: AttemptKey) -> int:
        """The payload of this attempt that has been sent so far. Any thread may call it."""
        prompt = self._prompts.get(key)
        return prompt.sent_bytes if prompt is not None else 0

    def _set_blocks(self, key: AttemptKey, block_ids: Sequence[int], generation: int) -> bool:
        prompt = self._prompts.get(key)
        if prompt is None:
            return False
        with self._copying:
            if generation < (self._generations.get(key) or 0):
                self._counters.stale += 1
                return False
            prompt.blocks = list(block_ids)
        return True

    def withdraw(self, key: AttemptKey) -> int:
        """Any thread may call it; after it no block of this attempt is read. Returns the generation
        from which `progress` counts again. The caller then calls `progress(key, [], 0, generation)`
        on the KV thread."""
        with self._copying:
            prompt = self._prompts.get(key)
            if prompt is not None:
                prompt.blocks = []
            generation = (self._generations.get(key) or 0) + 1
            self._generations.bury(key, generation)
            return generation

    def release(self, key: AttemptKey, reason: str) -> None:
        self._handle(Release(key, reason))
        self._loans.end_unserved(self._tickets.serves)

    def on_message(self, channel: Channel, message: HandoffMessage) -> None:
        peer = channel.peer
        if peer is None:
            return
        self._channels[channel.id] = channel
        match message:
            case KvMapped():
                channel.loans = self._pool.segment is not None
            case KvReady() | KvCredit() | KvReleased() | KvAbort():
                if isinstance(message, KvCredit):
                    self._loans.end_read(channel.id, message.transfer, message.taken)
                self._handle(FromPeer(peer, message))
            case _:
                channel.close("a message that no decode worker sends")
        self._loans.end_unserved(self._tickets.serves)

    def on_channel_closed(self, channel: Channel) -> None:
        self._channels.pop(channel.id, None)
        self._handle(PeerLost(channel.id))
        self._loans.end_unserved(self._tickets.serves)

    def tick(self) -> None:
        self._handle(Tick())
        now = self._clock()
        for peer in self._tickets.peers_served():
            if peer in self._channels:
                self._channels[peer].check_liveness(now)
        self._loans.end_unserved(self._tickets.serves)

    def holds(self, now: float) -> list[KvHold]:
        return [
            KvHold(
                request_id=key[0],
                attempt=key[1],
                peer=lease.owner,
                side="send",
                blocks=lease.blocks,
                bytes=lease.blocks * self._tickets.block_bytes(key),
                lease_left_ms=lease.left_ms(now),
                age_ms=(now - lease.granted) * 1000,
            )
            for key, lease in self._tickets.holds()
        ]

    def __len__(self) -> int:
        return len(self._tickets)

    def _handle(self, event: TicketEvent, staged: Buffer | None = None) -> bool:
        """Does what the ticket table answers. `staged`: the buffer for a `SendData`. Returns
        whether it was used."""
        used = False
        for ticket_action in self._tickets.handle(event, self._clock()):
            key = ticket_action.key
            match ticket_action.action:
                case SendControl(peer, message) if peer in self._channels:
                    self._channels[peer].send(message)
                case Stage(transfer, index) if key is not None:
                    self._stage(key, transfer, index)
                case SendData() as send if staged is not None and key is not None:
                    used = self._send(key, send, staged)
                case SendVoid(peer, transfer, slot):
                    self._void(peer, transfer, slot)
                case Ended() as ended if key is not None:
                    self._end(key, ended)
        return used

    def _stage(self, key: AttemptKey, transfer: int, index: int) -> None:
        def use(buffer: Buffer) -> bool:
            return self._handle(ForSender(key, Staged(transfer, index)), buffer)

        self._pool.claim(use)

    def _send(self, key: AttemptKey, send: SendData, buffer: Buffer) -> bool:
        """Returns False if nothing was sent, because the connection or the blocks are gone. The
        caller then keeps the buffer."""
        channel = self._channels.get(send.peer)
        if channel is None or channel.peer is None:
            return False
        peer, prompt, raw = channel.peer.name, self._prompts[key], send.plan.message(send.index)
        loans, data_key = channel.loans, channel.data_key(raw.transfer)
        expected = raw.compressed() if self._compresses(prompt, channel, raw) else raw
        if not self._fill(buffer, prompt, expected, data_key):
            self._void(send.peer, expected.transfer, send.slot)
            return False
        prompt.messages += 1
        prompt.payload_bytes += expected.payload_bytes
        prompt.raw_bytes += raw.payload_bytes
        prompt.compression = prompt.compression or (FP8 if prompt.fp8 else "")
        message = buffer[: expected.message_bytes]
        if loans:
            message = np.zeros(HEADER_BYTES, np.uint8)
            offset = self._loans.lend(buffer, channel.id, expected.transfer)
            write_loan(message, expected.transfer, send.slot, offset, key=data_key)
        else:
            self._chooser.on_send_started(peer, prompt.fp8, self._clock())

        def on_sent(error: str | None) -> None:
            if error is None:
                prompt.sent_bytes += expected.payload_bytes
            if not loans:
                self._chooser.on_send_ended(
                    peer, 0 if error else expected.message_bytes, self._clock()
                )
                self._pool.release(buffer)

        channel.link.send(message, data_tag(expected.transfer, send.slot, INDEX_BITS), on_sent)
        if not loans:
            channel.link.progress()
        return True

    def _fill(
        self, buffer: Buffer, prompt: _OfferedPrompt, expected: ExpectedMessage, data_key: bytes
    ) -> bool:
        """Writes the message into the buffer. Returns False if the blocks are gone or damaged."""
        message = buffer[: expected.message_bytes]
        payload = message[HEADER_BYTES:]
        invalidate_header(message)
        with self._copying:
            blocks = prompt.blocks[expected.first_block : expected.end_block]
            if len(blocks) != expected.blocks:
                return False
            stored, ticket = prompt.stored, prompt.ticket
            packing = self._packing if stored is None else stored.packing
            if ticket.canonical:
                packing = self._canonical[ticket.element]
            gathered = packing.gather(blocks, payload, expected)
        if stored is not None and not stored.judge(range(expected.first_block, expected.end_block)):
            return False
        total = packing.encode(payload, expected, gathered)
        early_bytes = NOT_YET if prompt.early_bytes is None else prompt.early_bytes
        write_header(message, expected, total, early_bytes, key=data_key)
        return True

    def _compresses(
        self, prompt: _OfferedPrompt, channel: Channel, expected: ExpectedMessage
    ) -> bool:
        """Whether to compress the messages of this transfer; chosen once for each transfer. The
        canonical form is not."""
        if prompt.ticket.canonical:
            return False
        if prompt.transfer != expected.transfer and channel.peer is not None:
            prompt.transfer = expected.transfer
            allowed = bool(expected.fp8_bytes)
            prompt.fp8 = self._chooser.choose(channel.peer.name, allowed, loan=channel.loans)
        return prompt.fp8

    def _void(self, peer: int, transfer: int, slot: int) -> None:
        channel = self._channels.get(peer)
        if channel is None:
            return
        message = np.zeros(HEADER_BYTES, np.uint8)
        write_void(message, transfer, slot, key=channel.data_key(transfer))
        channel.link.send(message, data_tag(transfer, slot, INDEX_BITS), lambda _: None)

    def _end(self, key: AttemptKey, ended: Ended) -> None:
        with self._copying:
            prompt = self._prompts.pop(key)
        report = KvReport(
            messages=prompt.messages,
            payload_bytes=prompt.payload_bytes,
            wire_bytes=prompt.payload_bytes + HEADER_BYTES * prompt.messages,
            early_bytes=prompt.early_bytes or 0,
            compression=prompt.compression,
            raw_bytes=prompt.raw_bytes,
            element=prompt.ticket.element,
        )
        self._on_ended(prompt.ticket, report, ended)
