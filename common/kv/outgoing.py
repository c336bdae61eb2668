"""P's shell around the `Desk`: copies blocks to staging and sends them.

Theory of operation: everything here runs on the KV thread but `withdraw`, which the engine's thread
calls when it takes blocks back before a handoff ended (preemption): it waits for a copy in
progress, after it no block of that request is read. Data once staged no longer needs the engine's
blocks. A D that can read the staging memory is told where a message lies, and its buffer is lent
until D has read it or the transfer ends (`lent.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from common.errors import Code
from common.kv.compression import Chooser
from common.kv.control import Channel, Heard
from common.kv.digest import HEADER_BYTES, INDEX_BITS, NOT_YET, Expected, seal, seal_lent, seal_void
from common.kv.handoff.desk import TOMBSTONES, Desk, Key, Out
from common.kv.handoff.tally import Tally
from common.kv.handoff.words import Ended, SendData, SendVoid, Stage, Tell
from common.kv.layout import KvMemory
from common.kv.lease import Tombstones
from common.kv.lent import Loans, break_seal
from common.kv.messages import KvAbort, KvCredit, KvMapped, KvReady, KvReleased
from common.kv.packing import Packing
from common.kv.plan import FP8
from common.kv.staging import Buffer, Staging
from common.kv.ucx import data_tag
from common.messages import KvHold, KvReport, Ticket

OnEnded = Callable[[Ticket, KvReport, Ended], None]


@dataclass(slots=True)
class _Source:
    """`blocks`: where the prompt's blocks are; empty once the engine took them back. `sent_bytes`:
    payload that was sent or lent, `early_bytes` what it was when the prefill ended. `fp8`:
    what was chosen for `transfer`."""

    ticket: Ticket
    blocks: list[int] = field(default_factory=list)
    messages: int = 0
    payload_bytes: int = 0
    sent_bytes: int = 0
    early_bytes: int | None = None
    transfer: int | None = None
    fp8: bool = False
    raw_bytes: int = 0
    compression: str = ""


class Outgoing:
    """Serves tickets offered by this engine. `on_ended` is called once per accepted offer."""

    def __init__(
        self,
        desk: Desk,
        memory: KvMemory,
        staging: Staging,
        *,
        tally: Tally,
        chooser: Chooser,
        on_ended: OnEnded,
        clock: Callable[[], float],
    ) -> None:
        self._desk = desk
        self._memory = memory
        self._staging = staging
        self._loans = Loans(staging)
        self._tally = tally
        self._packing = Packing(memory, staging.payload_bytes)
        self._chooser = chooser
        self._on_ended = on_ended
        self._clock = clock
        self._channels: dict[int, Channel] = {}
        self._sources: dict[Key, _Source] = {}
        self._copying = threading.Lock()
        self._withdrawn: Tombstones[Key, int] = Tombstones(TOMBSTONES)

    def offer(self, ticket: Ticket, blocks: int, now: float) -> None:
        key = (ticket.request_id, ticket.attempt)
        self._sources.setdefault(key, _Source(ticket))
        outs = self._desk.offer(ticket, blocks, now)
        if outs is None:
            if self._desk.sender(key) is not None:
                return
            del self._sources[key]
            ended = Ended(Code.CANCELLED, "the ticket has ended already")
            self._on_ended(ticket, KvReport(), ended)
            return
        self._run(outs)

    def progress(self, key: Key, block_ids: Sequence[int], computed: int, generation: int) -> None:
        """`block_ids`: all of the prompt that are allocated; the first `computed` hold KV.
        `generation`: how often blocks were withdrawn before this was said; older news is void."""
        if self._know(key, block_ids, generation):
            self._run(self._desk.computed(key, min(computed, len(block_ids))))

    def ahead(
        self, key: Key, block_ids: Sequence[int], blocks: int, layers: int, generation: int
    ) -> None:
        """As `progress`, but only the first `layers` layers of the first `blocks` hold KV."""
        if self._know(key, block_ids, generation):
            self._run(self._desk.ahead(key, min(blocks, len(block_ids)), layers))

    def prefill_ended(self, key: Key, sent_bytes: int) -> None:
        """The first word counts. `sent_bytes`: as `sent_bytes()` said then."""
        source = self._sources.get(key)
        if source is not None and source.early_bytes is None:
            source.early_bytes = sent_bytes

    def sent_bytes(self, key: Key) -> int:
        """Any thread."""
        source = self._sources.get(key)
        return source.sent_bytes if source is not None else 0

    def _know(self, key: Key, block_ids: Sequence[int], generation: int) -> bool:
        source = self._sources.get(key)
        if source is None:
            return False
        with self._copying:
            if generation < (self._withdrawn.get(key) or 0):
                self._tally.stale += 1
                return False
            source.blocks = list(block_ids)
        return True

    def withdraw(self, key: Key) -> int:
        """Any thread; returns the generation from which progress counts again. The caller then has
        the KV thread hear `progress(key, [], 0, generation)`."""
        with self._copying:
            source = self._sources.get(key)
            if source is not None:
                source.blocks = []
            generation = (self._withdrawn.get(key) or 0) + 1
            self._withdrawn.bury(key, generation)
            return generation

    def release(self, key: Key, reason: str) -> None:
        self._run(self._desk.release(key, reason))
        self._loans.review(self._desk.serves)

    def heard(self, channel: Channel, message: Heard, now: float) -> None:
        peer = channel.peer
        if peer is None:
            return
        self._channels[channel.id] = channel
        match message:
            case KvReady():
                self._run(self._desk.ready(peer, message, now))
            case KvCredit():
                self._loans.taken(channel.id, message.transfer, message.taken)
                self._run(self._desk.credit(peer, message))
            case KvMapped():
                channel.lends = self._staging.arena is not None
            case KvReleased():
                self._run(self._desk.released(message))
            case KvAbort():
                self._run(self._desk.aborted(peer, message))
            case _:
                channel.close("a message that no decode worker sends")
        self._loans.review(self._desk.serves)

    def lost(self, channel: Channel, now: float) -> None:
        self._channels.pop(channel.id, None)
        self._run(self._desk.peer_lost(channel.id, now))
        self._loans.review(self._desk.serves)

    def tick(self, now: float) -> None:
        self._run(self._desk.tick(now))
        for peer in self._desk.served():
            if peer in self._channels:
                self._channels[peer].feel_pulse(now)
        self._loans.review(self._desk.serves)

    def holds(self, now: float) -> list[KvHold]:
        block_bytes = self._memory.geometry.block_bytes
        return [
            KvHold(
                request_id=key[0],
                attempt=key[1],
                peer=lease.owner,
                side="send",
                blocks=lease.blocks,
                bytes=lease.blocks * block_bytes,
                lease_left_ms=lease.left_ms(now),
                age_ms=(now - lease.granted) * 1000,
            )
            for key, lease in self._desk.holds()
        ]

    def __len__(self) -> int:
        return len(self._desk)

    def _run(self, outs: Sequence[Out], staged: Buffer | None = None) -> bool:
        """Does the actions; True if `staged` was used."""
        used = False
        for out in outs:
            match out.action:
                case Tell(peer, message) if peer in self._channels:
                    self._channels[peer].tell(message)
                case Stage(transfer, index) if out.key is not None:
                    self._stage(out.key, transfer, index)
                case SendData() if staged is not None and out.key is not None:
                    used = self._send(out.key, out.action, staged)
                case SendVoid(peer, transfer, slot):
                    self._void(peer, transfer, slot)
                case Ended() if out.key is not None:
                    self._end(out.key, out.action)
        return used

    def _stage(self, key: Key, transfer: int, index: int) -> None:
        def use(buffer: Buffer) -> bool:
            return self._run(self._desk.staged(key, transfer, index), buffer)

        self._staging.claim(use)

    def _send(self, key: Key, send: SendData, buffer: Buffer) -> bool:
        """False: not sent, the buffer is free again (the link is gone or the blocks are)."""
        channel = self._channels.get(send.peer)
        if channel is None or channel.peer is None:
            return False
        peer, source, raw = channel.peer.name, self._sources[key], send.plan.message(send.index)
        lends = channel.lends
        what = raw.compressed() if self._compresses(source, channel, raw) else raw
        if not self._fill(buffer, source, what):
            self._void(send.peer, what.transfer, send.slot)
            return False
        source.messages += 1
        source.payload_bytes += what.payload_bytes
        source.raw_bytes += raw.payload_bytes
        source.compression = source.compression or (FP8 if source.fp8 else "")
        message = buffer[: what.message_bytes]
        if lends:
            message = np.zeros(HEADER_BYTES, np.uint8)
            offset = self._loans.lend(buffer, channel.id, what.transfer)
            seal_lent(message, what.transfer, send.slot, offset)
        else:
            self._chooser.sending(peer, source.fp8, self._clock())

        def sent(error: str | None) -> None:
            if error is None:
                source.sent_bytes += what.payload_bytes
            if not lends:
                self._chooser.sent(peer, 0 if error else what.message_bytes, self._clock())
                self._staging.give(buffer)

        channel.link.send(message, data_tag(what.transfer, send.slot, INDEX_BITS), sent)
        if not lends:
            channel.link.push()
        return True

    def _fill(self, buffer: Buffer, source: _Source, what: Expected) -> bool:
        """False: the blocks are gone."""
        message = buffer[: what.message_bytes]
        payload = message[HEADER_BYTES:]
        break_seal(message)
        with self._copying:
            blocks = source.blocks[what.first_block : what.end_block]
            if len(blocks) != what.blocks:
                return False
            gathered = self._packing.gather(blocks, payload, what)
        total = self._packing.encode(payload, what, gathered)
        seal(message, what, total, NOT_YET if source.early_bytes is None else source.early_bytes)
        return True

    def _compresses(self, source: _Source, channel: Channel, what: Expected) -> bool:
        """Chosen once for a transfer."""
        if source.transfer != what.transfer and channel.peer is not None:
            source.transfer = what.transfer
            allowed = bool(what.fp8_bytes)
            source.fp8 = self._chooser.choose(channel.peer.name, allowed, lent=channel.lends)
        return source.fp8

    def _void(self, peer: int, transfer: int, slot: int) -> None:
        channel = self._channels.get(peer)
        if channel is None:
            return
        message = np.zeros(HEADER_BYTES, np.uint8)
        seal_void(message, transfer, slot)
        channel.link.send(message, data_tag(transfer, slot, INDEX_BITS), lambda _: None)

    def _end(self, key: Key, ended: Ended) -> None:
        with self._copying:
            source = self._sources.pop(key)
        report = KvReport(
            messages=source.messages,
            payload_bytes=source.payload_bytes,
            wire_bytes=source.payload_bytes + HEADER_BYTES * source.messages,
            early_bytes=source.early_bytes or 0,
            compression=source.compression,
            raw_bytes=source.raw_bytes,
        )
        self._on_ended(source.ticket, report, ended)
