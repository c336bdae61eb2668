"""P's messages on their way out: copied to staging, then sent or loaned.

Theory of operation: everything runs on the KV thread, except that the engine's thread waits for the
lock while blocks are being read. Blocks in host memory are copied at once. On a card the copy runs
by itself, so a message is sent when it has ended, and the prompt is not over before: the engine
must not write to blocks that a copy still reads. From card to card the payload is a message of its
own, after that of its header; elsewhere both are one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from common.kv.checksum.definition import Sum
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
from common.kv.handoff.protocol import SendData
from common.kv.packing import Packing
from common.kv.peers.channel import Channel
from common.kv.plan import FP8
from common.kv.sides.offered_prompt import OfferedPrompt
from common.kv.staging.loans import Loans, invalidate_header
from common.kv.staging.pool import Buffer, StagingPool
from common.kv.transport.ucx import Done, data_tag, payload_tag


class _Message(NamedTuple):
    """One that is being copied."""

    channel: Channel
    prompt: OfferedPrompt
    packing: Packing
    raw: ExpectedMessage
    """Before compression."""
    expected: ExpectedMessage
    slot: int
    pool: StagingPool
    buffer: Buffer


class Outgoing:
    """Those of all prompts."""

    def __init__(
        self,
        loans: Loans,
        chooser: CompressionChooser,
        clock: Callable[[], float],
        on_copied: Callable[[OfferedPrompt], None],
    ) -> None:
        """`on_copied` is called when a copy out of the prompt's blocks has ended that ran by
        itself."""
        self._loans, self._chooser, self._clock = loans, chooser, clock
        self._on_copied = on_copied
        #: Guards the block ids of every prompt, and is held during a copy.
        self.copying = threading.Lock()

    def send(
        self,
        channel: Channel,
        prompt: OfferedPrompt,
        packing: Packing | None,
        send: SendData,
        pool: StagingPool,
        buffer: Buffer,
    ) -> bool:
        """Returns False if there is nothing to send, because the blocks are gone. The slot is
        answered with a void message then, and the caller keeps the buffer, which is the pool's."""
        raw = send.plan.message(send.index)
        expected = raw.compressed() if self._compresses(prompt, channel, raw) else raw
        if packing is None:
            self.void(channel, raw.transfer, send.slot)
            return False
        message = _Message(channel, prompt, packing, raw, expected, send.slot, pool, buffer)
        device, total = packing.device(expected), None
        if device is None and prompt.after is not None:
            prompt.after.synchronize()
        invalidate_header(buffer.header)
        with self.copying:
            blocks = prompt.blocks[expected.first_block : expected.end_block]
            payload = buffer.payload[: expected.payload_bytes]
            there = len(blocks) == expected.blocks
            if there and device is not None:
                layers = range(expected.first_layer, expected.end_layer)
                prompt.copies += 1
                copied = partial(self._copied, message)
                device.start_gather(blocks, payload, layers, prompt.after, copied)
            elif there:
                assert isinstance(payload, np.ndarray)
                total = packing.gather(blocks, payload, expected)
        if not there:
            self.void(channel, raw.transfer, send.slot)
        elif total is not None:
            self._deliver(message, total)
        return there

    def _copied(self, message: _Message, total: Sum) -> None:
        message.prompt.copies -= 1
        self._deliver(message, total)
        self._on_copied(message.prompt)

    def void(self, channel: Channel, transfer: int, slot: int) -> None:
        """Answers this slot without data."""
        message = np.zeros(HEADER_BYTES, np.uint8)
        write_void(message, transfer, slot, key=channel.data_key(transfer))
        channel.link.send(message, data_tag(transfer, slot, INDEX_BITS), lambda _: None)

    def _deliver(self, message: _Message, gathered: Sum) -> None:
        """Its blocks have been copied."""
        channel, prompt, expected = message.channel, message.prompt, message.expected
        buffer, stored = message.buffer, prompt.stored
        if stored is not None and not stored.judge(range(expected.first_block, expected.end_block)):
            self.void(channel, expected.transfer, message.slot)
            message.pool.release(buffer)
            return
        payload = buffer.payload[: expected.payload_bytes]
        total = message.packing.encode(payload, expected, gathered)
        early = prompt.early_bytes
        early_bytes = NOT_YET if early is None else early // prompt.parts
        data_key = channel.data_key(expected.transfer)
        write_header(buffer.header, expected, total, early_bytes, key=data_key)
        prompt.messages += 1
        prompt.payload_bytes += expected.payload_bytes
        prompt.raw_bytes += message.raw.payload_bytes
        prompt.compression = prompt.compression or (FP8 if prompt.fp8 else "")
        if channel.loans and buffer.message is not None:
            self._lend(message, data_key)
        else:
            self._transmit(message)

    def _lend(self, message: _Message, data_key: bytes) -> None:
        channel, prompt, expected = message.channel, message.prompt, message.expected
        offered = np.zeros(HEADER_BYTES, np.uint8)
        offset = self._loans.lend(message.buffer, channel.id, expected.transfer)
        write_loan(offered, expected.transfer, message.slot, offset, key=data_key)

        def on_sent(error: str | None) -> None:
            if error is None:
                prompt.sent_bytes += expected.payload_bytes

        tag = data_tag(expected.transfer, message.slot, INDEX_BITS)
        channel.link.send(offered, tag, on_sent)

    def _transmit(self, message: _Message) -> None:
        channel, prompt, expected = message.channel, message.prompt, message.expected
        peer = channel.peer.name if channel.peer is not None else ""
        self._chooser.on_send_started(peer, prompt.fp8, self._clock())

        def on_sent(error: str | None) -> None:
            if error is None:
                prompt.sent_bytes += expected.payload_bytes
            sent = 0 if error else expected.message_bytes
            self._chooser.on_send_ended(peer, sent, self._clock())
            message.pool.release(message.buffer)

        whole, link = message.buffer.message, channel.link
        tag = data_tag(expected.transfer, message.slot, INDEX_BITS)
        if whole is not None:
            link.send(whole[: expected.message_bytes], tag, on_sent)
        else:
            part_sent = _after_both(on_sent)
            payload = message.buffer.payload[: expected.payload_bytes]
            link.send(message.buffer.header, tag, part_sent)
            link.send(payload, payload_tag(expected.transfer, message.slot, INDEX_BITS), part_sent)
        link.progress()

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


def _after_both(done: Done) -> Done:
    """What to call after each of two; `done` is called with the first error of them, once."""
    ended: list[str | None] = []

    def part_done(error: str | None) -> None:
        ended.append(error)
        if len(ended) == 2:
            done(ended[0] or ended[1])

    return part_done
