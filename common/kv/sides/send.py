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
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from common.errors import Code
from common.identity import AttemptKey, attempt_of_part
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
from common.kv.handoff.parts import joined_ends, key_of, tickets_of
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
from common.kv.messages import KvAbort, KvCredit, KvMapped, KvReady, KvReleased
from common.kv.packing import Packings
from common.kv.peers.channel import Channel, HandoffMessage
from common.kv.plan import FP8
from common.kv.sides.offered_prompt import OfferedPrompt, StoredBlocks
from common.kv.staging.loans import Loans, invalidate_header
from common.kv.staging.pool import Buffer, StagingPool
from common.kv.transport.ucx import data_tag
from common.messages import KvHold, KvReport, Ticket

OnEnded = Callable[[Ticket, KvReport, Ended], None]


class SendSide:
    """Serves the tickets that this engine offers."""

    def __init__(
        self,
        tickets: TicketTable,
        packings: Packings,
        pool: StagingPool,
        *,
        counters: HandoffCounters,
        chooser: CompressionChooser,
        on_ended: OnEnded,
        clock: Callable[[], float],
    ) -> None:
        """`on_ended` is called once for each call of `offer`."""
        self._tickets = tickets
        self._packings = packings
        self._pool = pool
        self._loans = Loans(pool)
        self._counters = counters
        self._chooser = chooser
        self._on_ended = on_ended
        self._clock = clock
        #: Connections by id, of every D that has asked for something.
        self._channels: dict[int, Channel] = {}
        #: By the attempt, and by the keys of all senders.
        self._prompts: dict[AttemptKey, OfferedPrompt] = {}
        #: Guards the block ids of every prompt, and is held during a copy.
        self._copying = threading.Lock()
        #: How often the blocks of an attempt were withdrawn.
        self._generations: Tombstones[AttemptKey, int] = Tombstones(TOMBSTONES_MAX)

    def offer(self, ticket: Ticket, blocks: int, stored: StoredBlocks | None = None) -> None:
        """The prompt's KV is or will be in the engine, or is `stored`."""
        key = key_of(ticket)
        if key in self._prompts:
            return
        prompt = self._prompts[key] = OfferedPrompt(ticket, key, stored)
        try:
            parts = tickets_of(ticket, self._packings.rank)
        except ValueError as error:
            prompt.senders[key] = None
            self._end(key, Ended(Code.KV_TRANSFER_FAILED, str(error)))
            return
        for part in self._begin(prompt, parts):
            self._handle(Offer(part, blocks))

    def _begin(self, prompt: OfferedPrompt, parts: list[Ticket]) -> list[Ticket]:
        """Names the senders that will be made for these tickets, which it returns."""
        stored, prompt.parts = prompt.stored, len(parts)
        for part in parts:
            packing = self._packings.of(part) if stored is None else stored.packing
            prompt.senders[key_of(part)] = packing
            self._prompts[key_of(part)] = prompt
        return parts

    def offers(self, key: AttemptKey) -> bool:
        """Whether something is held for this attempt."""
        return key in self._prompts

    def has_ended(self, key: AttemptKey) -> bool:
        """Whether nothing is held any more for this attempt, as far as is remembered."""
        return self._tickets.has_ended(key)

    def hand_over(self, kept: AttemptKey, ticket: Ticket) -> None:
        """What is offered for `kept`, to nobody, is for the D of this ticket. It still ends as
        `kept`."""
        key = key_of(ticket)
        try:
            parts = tickets_of(ticket, self._packings.rank)
        except ValueError as error:
            self.release(kept, str(error))
            return
        prompt = self._prompts[key] = self._prompts.pop(kept)
        prompt.ticket, prompt.key = msgspec.structs.replace(ticket, attempt=kept[1]), key
        prompt.senders.clear()
        self._begin(prompt, parts)
        form = next(iter(prompt.senders.values()), None)
        cut = form.blocks // self._packings.plain.blocks if form is not None else 1
        with self._copying:
            whole = prompt.blocks
            prompt.blocks = [one * cut + block for one in whole for block in range(cut)]
        blocks = len(prompt.blocks)
        for number, part in enumerate(parts):
            self._handle(Offer(part, blocks) if number else HandOver(kept, part, blocks))
        self._feed(key, Computed(blocks))

    def progress(
        self, key: AttemptKey, block_ids: Sequence[int], computed: int, generation: int
    ) -> None:
        """`block_ids`: all blocks of the prompt that are allocated; the first `computed` hold KV.
        `generation`: what the last `withdraw` before this call returned; a call that crossed a
        later one is ignored."""
        if self._set_blocks(key, block_ids, generation):
            self._feed(key, Computed(min(computed, len(block_ids))))

    def layers_computed(
        self, key: AttemptKey, block_ids: Sequence[int], blocks: int, layers: int, generation: int
    ) -> None:
        """As `progress`, but only the first `layers` layers of the first `blocks` hold KV."""
        if self._set_blocks(key, block_ids, generation):
            self._feed(key, LayersComputed(min(blocks, len(block_ids)), layers))

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
        prompt = self._prompts.get(key)
        for sender in list(prompt.senders) if prompt is not None else [key]:
            self._handle(Release(sender, reason))
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
                request_id=attempt_of_part(key)[0],
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

    def _feed(self, key: AttemptKey, event: Computed | LayersComputed) -> None:
        """To all senders of this prompt."""
        prompt = self._prompts.get(key)
        for sender in list(prompt.senders) if prompt is not None else ():
            self._handle(ForSender(sender, event))

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
        if not self._fill(buffer, key, expected, data_key):
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
        self, buffer: Buffer, key: AttemptKey, expected: ExpectedMessage, data_key: bytes
    ) -> bool:
        """Writes the message into the buffer. Returns False if the blocks are gone or damaged."""
        message = buffer[: expected.message_bytes]
        payload, prompt = message[HEADER_BYTES:], self._prompts[key]
        packing, stored = prompt.senders[key], prompt.stored
        invalidate_header(message)
        with self._copying:
            blocks = prompt.blocks[expected.first_block : expected.end_block]
            if len(blocks) != expected.blocks or packing is None:
                return False
            gathered = packing.gather(blocks, payload, expected)
        if stored is not None and not stored.judge(range(expected.first_block, expected.end_block)):
            return False
        total = packing.encode(payload, expected, gathered)
        early = prompt.early_bytes
        early_bytes = NOT_YET if early is None else early // prompt.parts
        write_header(message, expected, total, early_bytes, key=data_key)
        return True

    def _compresses(
        self, prompt: OfferedPrompt, channel: Channel, expected: ExpectedMessage
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
        """Of a sender; its prompt ends with the last."""
        with self._copying:
            prompt = self._prompts.pop(key)
            del prompt.senders[key]
            prompt.ended = joined_ends(prompt.ended, ended)
            if prompt.senders:
                return
            self._prompts.pop(prompt.key, None)
        self._on_ended(prompt.ticket, prompt.report(), prompt.ended)
