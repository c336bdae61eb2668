"""P's side of the handoffs of one engine: the shell around the ticket table. It copies blocks to
staging and sends them.

Theory of operation: the engine's connector offers a ticket and then reports, chunk by chunk, which
of the prompt's blocks hold KV. Independently D asks for blocks and grants slots, each of which is
a receive that D has posted. Both become events of the ticket table (`handoff/ticket_table.py`),
which answers with actions: get a staging buffer for a message, then copy its blocks there and send
it to a slot.

Everything here runs on the KV thread, except `withdraw` and `sent_bytes`. The engine's thread calls
`withdraw` when it takes blocks back before a handoff has ended (preemption): it waits for a copy
that this thread makes, and after it no copy of a block of that request begins. Data once staged no
longer needs the engine's blocks. To a D that has mapped P's shared segment only the offset of a
message is sent, and its buffer stays loaned until D has read it or the transfer ends
(`staging/loans.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from common.errors import Code
from common.identity import AttemptKey, attempt_of_part
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
from common.kv.layout import Mark
from common.kv.messages import KvAbort, KvCredit, KvMapped, KvReady, KvReleased
from common.kv.packing import Packings
from common.kv.peers.channel import Channel, HandoffMessage
from common.kv.sides.offered_prompt import OfferedPrompt, StoredBlocks
from common.kv.sides.outgoing import Outgoing
from common.kv.staging.loans import Loans
from common.kv.staging.pool import Buffer, Pools
from common.messages import KvHold, KvReport, Ticket

OnEnded = Callable[[Ticket, KvReport, Ended], None]


class SendSide:
    """Serves the tickets that this engine offers."""

    def __init__(
        self,
        tickets: TicketTable,
        packings: Packings,
        pools: Pools,
        *,
        counters: HandoffCounters,
        chooser: CompressionChooser,
        on_ended: OnEnded,
        clock: Callable[[], float],
    ) -> None:
        """`on_ended` is called once for each call of `offer`."""
        self._tickets = tickets
        self._packings = packings
        self._pools = pools
        self._loans = Loans(pools.host)
        self._out = Outgoing(self._loans, chooser, clock, self._copied)
        self._counters = counters
        self._on_ended = on_ended
        self._clock = clock
        #: Connections by id, of every D that has asked for something.
        self._channels: dict[int, Channel] = {}
        #: By the attempt, and by the keys of all senders.
        self._prompts: dict[AttemptKey, OfferedPrompt] = {}
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
        with self._out.copying:
            whole = prompt.blocks
            prompt.blocks = [one * cut + block for one in whole for block in range(cut)]
        blocks = len(prompt.blocks)
        for number, part in enumerate(parts):
            self._handle(Offer(part, blocks) if number else HandOver(kept, part, blocks))
        self._feed(key, Computed(blocks))

    def progress(
        self,
        key: AttemptKey,
        block_ids: Sequence[int],
        computed: int,
        generation: int,
        after: Mark | None = None,
    ) -> None:
        """`block_ids`: all blocks of the prompt that are allocated; the first `computed` hold KV
        once `after` has passed. `generation`: what the last `withdraw` before this call returned; a
        call that crossed a later one is ignored."""
        if self._set_blocks(key, block_ids, generation, after):
            self._feed(key, Computed(min(computed, len(block_ids))))

    def layers_computed(
        self,
        key: AttemptKey,
        block_ids: Sequence[int],
        blocks: int,
        layers: int,
        generation: int,
        after: Mark | None = None,
    ) -> None:
        """As `progress`, but only the first `layers` layers of the first `blocks` hold KV."""
        if self._set_blocks(key, block_ids, generation, after):
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

    def _set_blocks(
        self, key: AttemptKey, block_ids: Sequence[int], generation: int, after: Mark | None
    ) -> bool:
        prompt = self._prompts.get(key)
        if prompt is None:
            return False
        with self._out.copying:
            if generation < (self._generations.get(key) or 0):
                self._counters.stale += 1
                return False
            prompt.blocks, prompt.after = list(block_ids), after
        return True

    def withdraw(self, key: AttemptKey) -> int:
        """Any thread may call it; after it no copy of a block of this attempt begins. Returns the
        generation from which `progress` counts again. The caller then calls `progress(key, [], 0,
        generation)` on the KV thread."""
        with self._out.copying:
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
                channel.loans = self._pools.host.segment is not None
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
                case Stage() as stage if key is not None:
                    self._stage(key, stage)
                case SendData() as send if staged is not None and key is not None:
                    used = self._send(key, send, staged)
                case SendVoid(peer, transfer, slot):
                    self._void(peer, transfer, slot)
                case Ended() as ended if key is not None:
                    self._end(key, ended)
        return used

    def _stage(self, key: AttemptKey, stage: Stage) -> None:
        def use(buffer: Buffer) -> bool:
            return self._handle(ForSender(key, Staged(stage.transfer, stage.index)), buffer)

        self._pools.of(direct=stage.direct).claim(use)

    def _send(self, key: AttemptKey, send: SendData, buffer: Buffer) -> bool:
        """Returns False if nothing was sent, because the connection or the blocks are gone. The
        caller then keeps the buffer."""
        channel = self._channels.get(send.peer)
        if channel is None or channel.peer is None:
            return False
        prompt, pool = self._prompts[key], self._pools.of(direct=send.plan.direct)
        return self._out.send(channel, prompt, prompt.senders[key], send, pool, buffer)

    def _void(self, peer: int, transfer: int, slot: int) -> None:
        if peer in self._channels:
            self._out.void(self._channels[peer], transfer, slot)

    def _end(self, key: AttemptKey, ended: Ended) -> None:
        """Of a sender; its prompt ends with the last."""
        with self._out.copying:
            prompt = self._prompts.pop(key)
            del prompt.senders[key]
            prompt.ended = joined_ends(prompt.ended, ended)
            prompt.over = not prompt.senders
            if prompt.over:
                self._prompts.pop(prompt.key, None)
        self._finish(prompt)

    def _copied(self, prompt: OfferedPrompt) -> None:
        self._finish(prompt)
        self._loans.end_unserved(self._tickets.serves)

    def _finish(self, prompt: OfferedPrompt) -> None:
        """The engine may have the blocks once nothing reads them any more."""
        if prompt.over and not prompt.copies:
            prompt.over = False
            self._on_ended(prompt.ticket, prompt.report(), prompt.ended)
