"""What a store gives to other workers, at the holder's end: bounded, judged, and let go again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from common.config import KvConfig, StoreConfig
from common.kv.checksum.header import HEADER_BYTES
from common.kv.handoff.protocol import Ended
from common.kv.messages import (
    PULL_BLOCKS_MAX,
    PULL_HASHES_MAX,
    KvPull,
    KvReady,
    KvRefused,
    KvReleased,
)
from common.kv.offers.pulls import PULLS_MAX, StorePulls, own_ticket, pull_spec
from common.kv.peers.channel import CONTROL_FRAME_BYTES, HEAD_BYTES, WorkerIdentity
from common.kv.plan import KvShape
from common.kv.store.arena import Arena
from common.kv.store.table import BlockCopy, BlockName, StoreTable
from common.messages import KvReport, KvSource, Ticket
from common.net.wire import encode
from tests.rigs import arenas
from tests.unit.common.kv.sides.test_send import Bench, Peer

SLOTS = 64
LEASE_S = 2.0
CONFIG = KvConfig(lease_ms=LEASE_S * 1000, store=StoreConfig(ram_mib=1))


def hashes(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)


class Asking(Peer):
    """Notes how many leading blocks it is told of."""

    def __init__(self, number: int = 1) -> None:
        super().__init__(number)
        self.held: list[int] = []

    def send(self, message: msgspec.Struct) -> None:
        super().send(message)
        if isinstance(message, KvRefused):
            self.held.append(message.held)


class Holder(Bench):
    """A store of which the first slots hold the blocks 1, 2, ..."""

    def __init__(self, stored: int = 8) -> None:
        super().__init__(shared=False)
        self.arena, self.table = Arena(self.memory, SLOTS), StoreTable(SLOTS, ttl_s=1e6)
        self.peer: Asking = Asking()
        identity = WorkerIdentity("p0", "inc-p0", "f")
        self.pulls = StorePulls(
            identity, self.arena, self.side, CONFIG, self.counters, lambda: self.now
        )
        self.pulls.table = self.table
        for number in range(1, stored + 1):
            self.store(number)

    def store(self, number: int) -> None:
        name = BlockName(0, hashes(number))
        slot = self.table.begin_write(name)
        assert slot is not None
        arenas.write(self.arena, BlockCopy(slot, number % 8, name))
        self.table.end_write(slot, 0.0, whole=True)

    def ask(self, wanted: bytes, request_id: str = "r", total: int = 0, secret: str = "") -> None:
        message = KvPull(
            secret=(secret or request_id).encode(),
            request_id=request_id,
            attempt=1,
            transfer=7,
            total=total or len(wanted) // 32,
            hashes=wanted,
        )
        self.pulls.on_pull(self.peer, message)  # type: ignore[arg-type]

    def take(self, blocks: int, request_id: str = "r") -> None:
        """The blocks that it asked for."""
        self.hear(KvReady(request_id.encode(), request_id, 1, 7, 0, blocks, 2, blocks))

    def on_ended(self, ticket: Ticket, report: KvReport, ended: Ended) -> None:
        assert self.pulls.on_send_ended(ticket, taken=not ended.error)
        super().on_ended(ticket, report, ended)

    @property
    def readers(self) -> int:
        self.table.check_invariants()
        return sum(slot.readers for slot in self.table._slots)


def test_slots_are_kept_until_all_blocks_are_taken() -> None:
    holder = Holder()
    holder.ask(hashes(1, 2, 3))
    assert (holder.readers, len(holder.pulls)) == (3, 1)
    holder.take(3)
    assert len(holder.peer.link.sent) == 2
    assert holder.readers == 3
    holder.hear(KvReleased(7))
    assert (holder.readers, len(holder.pulls)) == (0, 0)
    assert holder.counters.store_served == 3


def test_the_ticket_is_for_who_asked_alone() -> None:
    holder = Holder()
    holder.ask(hashes(1, 2))
    (sender,) = holder.side._tickets._senders.values()
    assert (sender.ticket.decode, sender.ticket.decode_incarnation) == ("d0", "inc-d0")
    assert sender.ticket.prefill == "p0"


@pytest.mark.parametrize(("wanted", "held"), [((1, 2, 99), 2), ((99, 1), 0)])
def test_what_is_not_all_there_is_refused_with_what_is(wanted: tuple[int, ...], held: int) -> None:
    holder = Holder()
    holder.ask(hashes(*wanted))
    assert holder.peer.held == [held]
    assert holder.readers == 0
    holder.take(len(wanted))
    assert len(holder.peer.refused) == 2, "the slots are answered, too"
    assert len(holder.peer.link.sent) == len(wanted)


def test_slots_that_nobody_takes_are_let_go_with_the_lease() -> None:
    holder = Holder()
    holder.ask(hashes(1, 2))
    holder.now += LEASE_S - 0.1
    holder.side.tick()
    assert holder.readers == 2
    holder.now += 0.2
    holder.side.tick()
    assert holder.readers == 0
    assert holder.counters.store_served == 0


def test_few_pulls_are_served_at_once() -> None:
    holder = Holder(SLOTS)
    for at in range(PULLS_MAX):
        holder.ask(hashes(1), f"r{at}")
    assert holder.peer.refused == []
    holder.ask(hashes(1), "more")
    assert "served already" in holder.peer.refused[0]
    holder.side.release(("r0", 1), "over")
    holder.ask(hashes(1), "again")
    assert len(holder.peer.refused) == 1


def test_half_of_the_store_is_left_to_its_engine() -> None:
    holder = Holder(SLOTS)
    holder.ask(hashes(*range(1, 1 + SLOTS // 4)), "r0")
    holder.ask(hashes(*range(1, 2 + SLOTS // 4)), "r1")
    assert "half of its store" in holder.peer.refused[0]
    holder.ask(hashes(*range(1, 1 + SLOTS // 4)), "r2")
    assert len(holder.peer.refused) == 1


def test_a_damaged_block_is_not_sent_and_not_found_again() -> None:
    holder = Holder()
    holder.arena.bytes[1 * 256 + 9] ^= 1
    holder.ask(hashes(1, 2, 3))
    holder.take(3)
    assert holder.counters.store_damaged == 1
    damaged, sound = (message.nbytes for message, _ in holder.peer.link.sent)
    assert (damaged, sound) == (HEADER_BYTES, HEADER_BYTES + 256)
    assert len(holder.table.find([BlockName(0, hashes(at)) for at in (1, 2, 3)], 0.0)) == 1
    holder.side.release(("r", 1), "given up")
    assert holder.readers == 0


def test_pieces_are_joined_in_order_for_each_channel() -> None:
    holder = Holder()
    holder.ask(hashes(1, 2), total=3)
    assert holder.readers == 0
    holder.ask(hashes(3), total=3)
    assert holder.readers == 3
    holder.ask(hashes(4, 5), "s", total=3)
    holder.pulls.on_channel_closed(holder.peer)  # type: ignore[arg-type]
    holder.ask(hashes(6), "s", total=3)
    assert holder.readers == 3, "what came over a link is forgotten with it"
    holder.ask(hashes(7, 8), "t", total=2)
    assert holder.readers == 5, "a new pull begins anew"


@pytest.mark.parametrize(
    ("wanted", "total"),
    [(b"", 0), (hashes(1)[:-1], 1), (hashes(1, 2), 1), (hashes(1), PULL_BLOCKS_MAX + 1)],
)
def test_what_no_worker_sends_costs_the_link(wanted: bytes, total: int) -> None:
    holder = Holder()
    holder.ask(wanted, total=total)
    assert holder.peer.closed
    assert holder.readers == 0


def test_a_pull_asked_again_over_another_link_goes_on() -> None:
    holder = Holder()
    holder.ask(hashes(1, 2))
    holder.ask(hashes(1, 2))
    assert holder.readers == 2
    assert holder.peer.refused == []


def test_without_a_table_nothing_is_given() -> None:
    holder = Holder()
    holder.pulls.table = None
    holder.ask(hashes(1))
    assert holder.peer.refused == ["its engine is not ready"]


def test_a_control_frame_holds_a_piece() -> None:
    piece = KvPull(
        secret=bytes(16),
        request_id="r" * 128,
        attempt=1 << 30,
        transfer=1 << 62,
        total=PULL_BLOCKS_MAX,
        hashes=bytes(32 * PULL_HASHES_MAX),
    )
    assert len(encode(piece)) <= CONTROL_FRAME_BYTES - HEAD_BYTES


def test_the_own_ticket_and_plan_of_a_pull() -> None:
    source = KvSource(name="p1", incarnation="j", fingerprint="f", kv_address="h:1", tokens=9)
    identity = WorkerIdentity("p0", "inc-p0", "f")
    one, other = (own_ticket(identity, ("r#pull", 1), source) for _ in range(2))
    assert one.secret != other.secret
    assert (one.prefill, one.decode, one.kv_address) == ("p1", "p0", "h:1")
    assert (one.request_id, one.attempt) == ("r#pull", 1)
    with pytest.raises(ValueError, match="another fingerprint"):
        own_ticket(WorkerIdentity("p0", "inc-p0", "g"), ("r", 1), source)
    spec = pull_spec(CONFIG, KvShape(2, 1024, fp8_page_bytes=99), hashes(1, 2), 2, 5.0)
    assert spec.shape.fp8_page_bytes == 0, "what is pulled is handed on and must be exact"
    assert spec.deadline == 5.0 + CONFIG.store.pull_ms / 1000
    assert (spec.first_block, spec.blocks, spec.retries) == (0, 2, 1)


class Below:
    """A disk whose blocks come to the memory when the test says so."""

    def __init__(self, holder: Holder, *blocks: int) -> None:
        self.holder, self.blocks = holder, blocks
        self.come: list[Callable[[], None]] = []
        self.used: list[BlockName] = []

    def begin(self, names: Sequence[BlockName], then: Callable[[], None]) -> bool:
        lacking = [at for at in self.blocks if BlockName(0, hashes(at)) in names]
        lacking = [at for at in lacking if BlockName(0, hashes(at)) not in self.holder.table]

        def come() -> None:
            for number in lacking:
                self.holder.store(number)
            then()

        if lacking:
            self.come.append(come)
        return bool(lacking)

    def note_used(self, names: Sequence[BlockName]) -> None:
        self.used += names


def over_disk(*blocks: int) -> tuple[Holder, Below]:
    """Blocks 1 and 2 are in memory."""
    holder = Holder(2)
    below = Below(holder, *blocks)
    holder.pulls.below = below  # type: ignore[assignment]
    return holder, below


def test_what_only_the_disk_has_is_offered_once_memory_has_it() -> None:
    holder, below = over_disk(3, 4)
    holder.ask(hashes(1, 2, 3, 4))
    holder.take(4)
    assert (len(holder.pulls), holder.pulls.waiting) == (0, 1)
    assert (holder.peer.refused, holder.peer.link.sent) == ([], [])
    holder.ask(hashes(1, 2, 3, 4))
    assert len(below.come) == 1, "it is asked once"
    below.come.pop()()
    assert (len(holder.pulls), holder.pulls.waiting, holder.readers) == (1, 0, 4)
    assert len(holder.peer.link.sent) == 2
    holder.hear(KvReleased(7))
    assert [name.block_hash for name in below.used] == [hashes(at) for at in (1, 2, 3, 4)]
    assert holder.readers == 0


def test_what_the_disk_has_not_either_is_refused_with_what_is_there_then() -> None:
    holder, below = over_disk(3)
    holder.ask(hashes(1, 2, 3, 4))
    below.come.pop()()
    assert holder.peer.held == [3]
    assert (holder.readers, holder.pulls.waiting) == (0, 0)


def test_who_is_gone_when_the_disk_answers_gets_nothing() -> None:
    holder, below = over_disk(3)
    holder.ask(hashes(1, 2, 3))
    holder.peer.closed = "gone"
    below.come.pop()()
    assert (holder.readers, len(holder.pulls), holder.pulls.waiting) == (0, 0, 0)


def test_pulls_that_wait_for_the_disk_count_among_those_that_are_served() -> None:
    holder, _ = over_disk(3)
    for at in range(PULLS_MAX):
        holder.ask(hashes(3), f"r{at}")
    holder.ask(hashes(1), "more")
    assert "served already" in holder.peer.refused[0]
    holder, _ = over_disk(3)
    holder.ask(hashes(*range(1, SLOTS // 2)), "large")
    holder.ask(hashes(1, 2), "small")
    assert "half of its store" in holder.peer.refused[0]
