"""P's shell, with a link that the test plays: what it writes to staging, and what it sends when."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.header import HEADER_BYTES, ExpectedMessage, Verdict, loan_offset
from common.kv.compression.policy import CompressionChooser
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.parts import WHOLE
from common.kv.handoff.protocol import Ended
from common.kv.handoff.ticket_table import TicketTable
from common.kv.layout import Geometry, HostMemory
from common.kv.messages import (
    ConnectedPeer,
    KvAbort,
    KvCredit,
    KvMapped,
    KvReady,
    KvRefused,
    KvReleased,
)
from common.kv.packing import Packings
from common.kv.sides.send import SendSide
from common.kv.staging.pool import Pools, StagingPool
from common.kv.transport.ucx import Done
from common.messages import KvReport, Ticket
from tests.rigs.messages import ticket
from tests.unit.common.kv.headers import verdict_of, verify

GEOMETRY = Geometry(1, 8, 256, 8 * 256, 256)
KEY = ("r", 0)
INVALID = bytes(HEADER_BYTES)


class Watched(HostMemory):
    """Notes the header before each payload at the moment in which the payload is written."""

    def __init__(self) -> None:
        super().__init__(np.arange(GEOMETRY.end, dtype=np.uint64).astype(np.uint8), GEOMETRY)
        self.headers: list[bytes] = []

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> Sum:
        self.headers.append(ctypes.string_at(out.ctypes.data - HEADER_BYTES, HEADER_BYTES))
        return super().gather(block_ids, out, layers)


class Link:
    """Takes messages and completes them when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[Bytes, Done]] = []

    def send(self, message: Bytes, _tag: int, done: Done) -> None:
        self.sent.append((message, done))

    def progress(self) -> None:
        """Nothing is on a wire."""


class Peer:
    """A channel to d0."""

    def __init__(self, number: int = 1) -> None:
        self.id, self.link, self.loans = number, Link(), False
        self.peer = ConnectedPeer(number, "d0", "inc-d0")
        self.closed = ""
        self.key = b""
        self.refused: list[str] = []

    def send(self, message: msgspec.Struct) -> None:
        if isinstance(message, KvRefused):
            self.refused.append(message.message)

    def data_key(self, transfer: int) -> bytes:
        return self.key and self.key + bytes([transfer])

    def close(self, why: str) -> None:
        self.closed = why


class Bench:
    def __init__(self, *, shared: bool) -> None:
        self.memory, self.ended = Watched(), list[tuple[KvReport, Ended]]()
        self.now, self.over = 0.0, list[tuple[int, str]]()
        self.pool = StagingPool(2 * GEOMETRY.block_bytes, 0, shared=shared)
        self.counters = HandoffCounters()
        packings = Packings(self.memory, self.pool.payload_bytes, {}, WHOLE)
        self.side = SendSide(
            TicketTable(packings.shape_of, self.pool.payload_bytes, 60_000.0, self.counters),
            packings,
            Pools(self.pool),
            counters=self.counters,
            chooser=CompressionChooser("none", 1.0, 0.0),
            on_ended=self.on_ended,
            clock=lambda: self.now,
        )
        self.peer = Peer()
        self.handed = ticket(lease_ms=60_000.0)

    def hear(self, message: msgspec.Struct, peer: Peer | None = None) -> None:
        self.side.on_message(peer or self.peer, message)  # type: ignore[arg-type]

    def ready(self, blocks: int, granted: int, handed: Ticket | None = None) -> None:
        ticket = handed or self.handed
        attempt = ticket.attempt
        ready = KvReady(
            ticket.secret, "r", attempt, 7, 0, blocks, message_blocks=2, granted=granted
        )
        self.hear(ready)

    def on_ended(self, ticket: Ticket, report: KvReport, ended: Ended) -> None:
        self.ended.append((report, ended))
        self.over.append((ticket.attempt, ended.error))


@pytest.fixture
def loaning() -> Bench:
    bench = Bench(shared=True)
    bench.hear(KvMapped())
    assert bench.peer.loans
    return bench


@pytest.fixture
def sending() -> Bench:
    return Bench(shared=False)


def offsets(bench: Bench) -> list[int]:
    found = [
        loan_offset(message, 7, slot) for slot, (message, _) in enumerate(bench.peer.link.sent)
    ]
    return [offset for offset in found if offset is not None]


def test_the_seal_of_what_was_lent_is_broken_before_it_is_overwritten(loaning: Bench) -> None:
    """D may still read there, and must not take the new payload for the old one."""
    loaning.side.offer(loaning.handed, 8)
    loaning.ready(8, granted=2)
    loaning.side.progress(KEY, list(range(8)), 8, 0)
    lent = offsets(loaning)
    assert len(lent) == 2 == loaning.pool.used
    loaning.hear(KvCredit(transfer=7, granted=4, taken=(lent[0],)))
    assert offsets(loaning) == [*lent, lent[0]]
    assert loaning.memory.headers == [INVALID] * 3


def test_what_is_lent_is_not_written_to_until_d_has_read_it(loaning: Bench) -> None:
    loaning.side.offer(loaning.handed, 8)
    loaning.ready(8, granted=4)
    loaning.side.progress(KEY, list(range(8)), 8, 0)
    lent = offsets(loaning)
    assert len(set(lent)) == 2
    loaning.hear(KvCredit(transfer=7, granted=0, taken=(lent[1],)), Peer(2))
    loaning.hear(KvCredit(transfer=8, granted=0, taken=(lent[1],)))
    assert len(offsets(loaning)) == 2
    loaning.hear(KvCredit(transfer=7, granted=0, taken=(lent[1],)))
    assert offsets(loaning) == [*lent, lent[1]]


def test_loans_end_with_their_transfer(loaning: Bench) -> None:
    loaning.side.offer(loaning.handed, 4)
    loaning.ready(4, granted=2)
    loaning.side.progress(KEY, list(range(4)), 4, 0)
    assert loaning.pool.used == 2
    loaning.hear(KvReleased(7))
    assert loaning.pool.used == 0
    assert [ended.error for _, ended in loaning.ended] == [""]


def test_a_buffer_on_the_wire_is_kept_until_the_transport_is_done(sending: Bench) -> None:
    sending.side.offer(sending.handed, 8)
    sending.ready(8, granted=4)
    sending.side.progress(KEY, list(range(8)), 8, 0)
    link = sending.peer.link
    assert (len(link.sent), sending.pool.used) == (2, 2)
    link.sent[0][1](None)
    assert (len(link.sent), sending.pool.used) == (3, 2)
    assert sending.side.sent_bytes(KEY) == 2 * GEOMETRY.block_bytes
    link.sent[1][1]("the connection is lost")
    assert sending.side.sent_bytes(KEY) == 2 * GEOMETRY.block_bytes


def test_a_withdrawn_block_is_not_read_and_late_news_of_it_is_stale(sending: Bench) -> None:
    sending.side.offer(sending.handed, 4)
    sending.ready(4, granted=2)
    generation = sending.side.withdraw(KEY)
    sending.side.progress(KEY, list(range(4)), 4, generation - 1)
    assert sending.memory.headers == []
    sending.side.progress(KEY, list(range(4)), 4, generation)
    assert len(sending.memory.headers) == 2


def test_bytes_sent_after_the_prefill_are_not_early(sending: Bench) -> None:
    sending.side.offer(sending.handed, 4)
    sending.ready(4, granted=2)
    sending.side.progress(KEY, list(range(4)), 2, 0)
    sending.peer.link.sent[0][1](None)
    sending.side.prefill_ended(KEY, sending.side.sent_bytes(KEY))
    sending.side.progress(KEY, list(range(4)), 4, 0)
    sending.peer.link.sent[1][1](None)
    sending.side.prefill_ended(KEY, sending.side.sent_bytes(KEY))
    sending.hear(KvReleased(7))
    ((report, _),) = sending.ended
    assert (report.early_bytes, report.payload_bytes) == (512, 1024)


def test_what_no_decode_worker_sends_costs_the_link(sending: Bench) -> None:
    sending.hear(KvRefused(7, "c", "m"))
    assert sending.peer.closed


@pytest.mark.parametrize("shared", [True, False], ids=["loaned", "sent"])
def test_what_is_sent_is_sealed_under_the_key_of_its_transfer(*, shared: bool) -> None:
    bench = Bench(shared=shared)
    bench.peer.key, key = b"k" * 31, b"k" * 31 + bytes([7])
    bench.peer.loans = shared
    bench.side.offer(bench.handed, 4)
    bench.ready(4, granted=2)
    bench.side.progress(KEY, [0, 1, 2, 3], 2, 0)
    (message, _), *_ = bench.peer.link.sent
    if shared:
        offset = loan_offset(message, 7, 0, key=key)
        assert offset is not None
        assert bench.pool.segment is not None
        message = bench.pool.segment.memory[offset:]
    expected = ExpectedMessage(7, 0, 0, 2, 0, 1, 2 * GEOMETRY.block_bytes)
    assert verdict_of(message, expected, key=key) is Verdict.OK
    bench.hear(KvAbort(7, "enough"))
    void = bench.peer.link.sent[-1][0]
    assert verify(void, 7, 1, lambda _: None, key=key).verdict is Verdict.VOID
