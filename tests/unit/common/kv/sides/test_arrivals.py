"""What comes in posted receives, where the copies to the blocks run by themselves: each message is
copied once, a slot from card to card is answered by two, and no buffer is free too early."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest

from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.header import (
    HEADER_BYTES,
    INDEX_BITS,
    Arrival,
    Verdict,
    write_header,
    write_void,
)
from common.kv.checksum.kernel import sum_of
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.protocol import Connected, Posted, Start
from common.kv.handoff.receiver import FetchSpec, Receiver
from common.kv.layout import Geometry, HostMemory, Mark, Payload
from common.kv.packing import Packing
from common.kv.plan import Chunking, TransferChunking, TransferPlan, shape_of
from common.kv.sides.arrivals import Arrivals, Fetch, receive_of
from common.kv.staging.pool import CardPool, StagingPool
from common.kv.transport.ucx import Done, data_tag, payload_tag
from tests.rigs.messages import ticket

GEOMETRY = Geometry(1, 8, 256, 8 * 256, 256)
BLOCKS, TRANSFER = 4, 7


@dataclass
class Copies:
    """As `DeviceCopies`, as far as it is used; the test ends the copies."""

    running: list[tuple[list[int], bytes, Callable[[Sum], None]]] = field(default_factory=list)

    def start_scatter(
        self,
        block_ids: Sequence[int],
        data: Payload,
        layers: range,
        after: Mark | None,
        done: Callable[[Sum], None],
    ) -> None:
        assert isinstance(data, np.ndarray)
        self.running.append((list(block_ids), data.tobytes(), done))

    def end(self) -> None:
        _, data, done = self.running.pop(0)
        done(sum_of(np.frombuffer(data, np.uint8)))


class Memory(HostMemory):
    device: Any


class Link:
    """Takes receives; the test fills and completes them."""

    def __init__(self) -> None:
        self.posted: dict[int, tuple[Bytes, Done]] = {}

    def receive(self, buffer: Bytes, tag: int, done: Done) -> None:
        assert tag not in self.posted
        self.posted[tag] = (buffer, done)

    def complete(self, tag: int, data: Bytes, error: str | None = None) -> None:
        buffer, done = self.posted.pop(tag)
        buffer[: len(data)] = data
        done(error)


class Channel:
    id, remote_segment, closed = 1, None, ""

    def __init__(self) -> None:
        self.link = Link()

    def data_key(self, transfer: int) -> bytes:
        return b""

    def note_traffic(self) -> None:
        """Nobody asks here."""

    def close(self, why: str) -> None:
        self.closed = why


class Bench:
    """A fetch of `BLOCKS` blocks, a message each, from card to card."""

    def __init__(self) -> None:
        self.copies, self.channel, self.arrived = Copies(), Channel(), list[Arrival]()
        self.memory = memory = Memory(np.zeros(GEOMETRY.end, np.uint8), GEOMETRY)
        memory.device = self.copies
        chunking = Chunking(1, BLOCKS)
        each_way = TransferChunking(chunking, chunking, chunking)
        spec = FetchSpec(0, BLOCKS, shape_of(GEOMETRY), each_way, 60.0, 0)
        receiver = Receiver(ticket(), spec, random.Random(1).random)
        receiver.handle(Start(), 0.0)
        receiver.handle(Connected(1, TRANSFER, direct=True), 0.0)
        receiver.handle(Posted(TRANSFER, BLOCKS), 0.0)
        self.fetch: Fetch | None = Fetch(
            receiver, [5, 2, 7, 0], 0.0, Packing(memory, 256), after=None
        )
        self.counters = HandoffCounters()
        self.arrivals = Arrivals(
            lambda transfer: self.fetch if transfer == TRANSFER else None,
            lambda fetch, transfer, arrival, offset: self.arrived.append(arrival),
            self.counters,
            lambda: 0.0,
        )
        self.pool: StagingPool = CardPool(np.zeros(8 * 256, np.uint8))
        shape = shape_of(GEOMETRY)
        self.plan = TransferPlan(TRANSFER, 0, BLOCKS, 1, shape, direct=True)

    def post(self, slot: int) -> None:
        buffer = self.pool.acquire()
        assert buffer is not None
        receive = receive_of(cast("Any", self.channel), self.plan, slot, self.pool, buffer)
        self.arrivals.post(receive)

    def header(self, slot: int, index: int, payload: Bytes) -> None:
        header = np.zeros(HEADER_BYTES, np.uint8)
        write_header(header, self.plan.message(index), sum_of(payload))
        self.channel.link.complete(data_tag(TRANSFER, slot, INDEX_BITS), header)

    def payload(self, slot: int, payload: Bytes, error: str | None = None) -> None:
        self.channel.link.complete(payload_tag(TRANSFER, slot, INDEX_BITS), payload, error)

    @property
    def verdicts(self) -> list[Verdict]:
        return [arrival.verdict for arrival in self.arrived]


def content(seed: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, 256, np.uint8)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    for slot in range(2):
        made.post(slot)
    return made


def test_a_message_has_arrived_when_its_copy_has_ended(bench: Bench) -> None:
    bench.header(0, 2, content(1))
    assert bench.copies.running == []
    bench.payload(0, content(1))
    assert [copy[:2] for copy in bench.copies.running] == [([7], content(1).tobytes())]
    assert (bench.arrived, bench.pool.used, len(bench.arrivals)) == ([], 2, 2)
    bench.copies.end()
    assert bench.arrived == [Arrival(Verdict.OK, 2)]
    assert (bench.pool.used, len(bench.arrivals)) == (1, 1)


def test_a_payload_unlike_its_header_is_damaged(bench: Bench) -> None:
    bench.header(0, 2, content(1))
    bench.payload(0, content(2))
    bench.copies.end()
    assert bench.verdicts == [Verdict.CORRUPT]


def test_a_message_is_not_copied_again_while_it_is_copied_or_after(bench: Bench) -> None:
    """The second could be another, and would be in the blocks when the first was verified."""
    bench.post(2)
    for slot in range(2):
        bench.header(slot, 2, content(slot))
        bench.payload(slot, content(slot))
    assert len(bench.copies.running) == 1
    assert bench.counters.stale == 1
    bench.copies.end()
    assert bench.arrived == [Arrival(Verdict.OK, 2)]
    assert bench.fetch is not None
    assert bench.fetch.copying == set()
    assert bench.pool.used == 1


def test_a_void_slot_has_no_payload(bench: Bench) -> None:
    void = np.zeros(HEADER_BYTES, np.uint8)
    write_void(void, TRANSFER, 0)
    bench.channel.link.complete(data_tag(TRANSFER, 0, INDEX_BITS), void)
    assert bench.verdicts == [Verdict.VOID]
    assert payload_tag(TRANSFER, 0, INDEX_BITS) not in bench.channel.link.posted
    assert bench.pool.used == 1


@pytest.mark.parametrize("wrong", ["bent header", "unknown message"])
def test_the_payload_of_a_wrong_header_is_taken_and_not_copied(bench: Bench, wrong: str) -> None:
    """A payload that nobody receives would keep P's buffer."""
    header = np.zeros(HEADER_BYTES, np.uint8)
    write_header(header, message_of(bench), sum_of(content(1)))
    header[20 if wrong == "bent header" else 16] ^= 64
    bench.channel.link.complete(data_tag(TRANSFER, 0, INDEX_BITS), header)
    assert (bench.verdicts, bench.pool.used) == ([], 2)
    bench.payload(0, content(1))
    assert bench.copies.running == []
    assert (bench.verdicts, bench.pool.used) == ([Verdict.CORRUPT], 1)


def message_of(bench: Bench) -> Any:
    return bench.plan.message(1)


def test_a_payload_that_the_transport_lost_costs_the_link(bench: Bench) -> None:
    bench.header(0, 2, content(1))
    bench.payload(0, content(1), "truncated")
    assert (bench.verdicts, bench.copies.running) == ([Verdict.LOST], [])
    assert "truncated" in bench.channel.closed


def test_what_comes_for_a_handoff_that_is_over_is_taken_and_forgotten(bench: Bench) -> None:
    bench.fetch = None
    bench.header(0, 2, content(1))
    bench.payload(0, content(1))
    assert (bench.arrived, bench.copies.running) == ([], [])
    assert bench.pool.used == 1


def test_a_handoff_that_ends_while_its_header_is_there_is_not_written_to(bench: Bench) -> None:
    bench.header(0, 2, content(1))
    bench.fetch = None
    bench.payload(0, content(1))
    assert (bench.copies.running, bench.pool.used) == ([], 1)


def test_a_copy_that_does_not_run_by_itself_waits_for_the_mark() -> None:
    """Of memory on a card that does not fit the kernel."""
    bench, waited = Bench(), list[str]()

    class Mark:
        def synchronize(self) -> None:
            assert not bench.memory.pages.any()
            waited.append("mark")

    assert bench.fetch is not None
    bench.memory.device, bench.fetch.after = None, cast("Any", Mark())
    bench.pool = StagingPool(256, 4 * 320)
    bench.plan = replace(bench.plan, direct=False)
    bench.post(0)
    message = np.concatenate([np.zeros(HEADER_BYTES, np.uint8), content(1)])
    write_header(message, bench.plan.message(2), sum_of(content(1)))
    bench.channel.link.complete(data_tag(TRANSFER, 0, INDEX_BITS), message)
    assert (waited, bench.verdicts) == (["mark"], [Verdict.OK])
    assert np.array_equal(bench.memory.page(0, 7), content(1))
