"""Blocks that another worker offers: what is pulled, to which slots, and what the answer says."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from common.config import KvConfig, StoreConfig
from common.errors import Code
from common.identity import AttemptKey, is_copy
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.protocol import Ended
from common.kv.handoff.receiver import FetchSpec
from common.kv.layout import Geometry, HostMemory
from common.kv.messages import (
    OFFER_BLOCKS_MAX,
    ConnectedPeer,
    KvCopied,
    KvOffer,
    KvTaken,
)
from common.kv.offers.copies import COPIES_MAX, OFFERS_WAITING_MAX, StoreCopies
from common.kv.packing import Packing
from common.kv.peers.channel import CONTROL_FRAME_BYTES, HEAD_BYTES, WorkerIdentity
from common.kv.store.arena import Arena
from common.kv.store.table import BlockName, StoreTable
from common.messages import KvReport, Ticket
from common.net.wire import encode

SLOTS = 8
GEOMETRY = Geometry(2, 8, 256, 8 * 256, 256)
CONFIG = KvConfig(store=StoreConfig(ram_mib=1))
DONE = Ended("", "")
DAMAGED = Ended(Code.KV_TRANSFER_FAILED, "damaged", "digest")


def hashes(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)


def names(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers)


class Offerer:
    """A channel to d1."""

    def __init__(self) -> None:
        self.peer, self.closed = ConnectedPeer(1, "d1", "inc-d1"), ""
        self.answers: list[tuple[int, int]] = []

    def send(self, message: msgspec.Struct) -> None:
        assert isinstance(message, KvTaken)
        self.answers.append((message.offer, message.blocks))

    def close(self, why: str) -> None:
        self.closed = why


class Taker:
    """A store that gets copies, and the receives that the test ends."""

    def __init__(self, slots: int = SLOTS) -> None:
        memory = HostMemory(np.zeros(GEOMETRY.end, np.uint8), GEOMETRY)
        self.arena, self.table = Arena(memory, slots), StoreTable(slots, ttl_s=10.0)
        self.now, self.handoffs = 0.0, 0
        self.counters, self.told = HandoffCounters(), list[KvCopied]()
        self.under_way: dict[AttemptKey, tuple[Ticket, FetchSpec, list[int]]] = {}
        self.copies = StoreCopies(
            WorkerIdentity("d2", "inc-d2", "f"),
            self.arena,
            self,
            CONFIG,
            self.counters,
            lambda: self.now,
            on_copied=self.told.append,
        )
        self.copies.table = self.table
        self.peer = Offerer()

    def __len__(self) -> int:
        return self.fetching

    @property
    def fetching(self) -> int:
        return self.handoffs + len(self.under_way)

    def fetch(
        self,
        ticket: Ticket,
        spec: FetchSpec,
        block_ids: Sequence[int],
        packing: Packing | None = None,
    ) -> None:
        assert packing is not None, "it goes to the arena"
        self.under_way[ticket.request_id, ticket.attempt] = ticket, spec, list(block_ids)

    def cancel(self, key: AttemptKey, reason: str) -> None:
        self.end(Ended(Code.CANCELLED, reason), key)

    def end(self, ended: Ended = DONE, key: AttemptKey | None = None) -> None:
        key = key or next(iter(self.under_way))
        ticket, spec, slots = self.under_way.pop(key)
        if not ended.error:
            for slot in slots:
                self.arena.bytes[slot * 512 : (slot + 1) * 512] = 7
        report = KvReport(blocks=spec.blocks, payload_bytes=spec.blocks * 512)
        assert self.copies.on_receive_ended(ticket, report, ended)
        self.table.check_invariants()

    def offer(
        self,
        number: int,
        *blocks: int,
        named: bool = True,
        owner: bytes = b"",
        goes_on: bool = False,
    ) -> None:
        message = KvOffer(
            offer=number,
            kv_address="h:1",
            hashes=hashes(*blocks),
            names=names(*blocks) if named else b"",
            owner=owner,
            goes_on=goes_on,
        )
        self.copies.on_offer(self.peer, message)  # type: ignore[arg-type]

    def held(self, *blocks: int) -> int:
        return len(self.table.find([BlockName(0, hashes(at)) for at in blocks], self.now))


def test_what_the_store_lacks_is_pulled_and_found_once_all_has_come() -> None:
    taker = Taker()
    taker.offer(5, 1, 2, 3)
    ((ticket, spec, slots),) = taker.under_way.values()
    assert is_copy(ticket.request_id)
    assert (ticket.prefill, ticket.prefill_incarnation, ticket.kv_address) == (
        "d1",
        "inc-d1",
        "h:1",
    )
    assert (spec.blocks, spec.hashes, len(slots)) == (3, hashes(1, 2, 3), 3)
    assert taker.held(1, 2, 3) == 0
    assert taker.peer.answers == []
    taker.end()
    assert taker.held(1, 2, 3) == 3
    assert all(
        taker.arena.holds(slot, BlockName(0, hashes(at)))
        for slot, at in zip(slots, (1, 2, 3), strict=True)
    )
    assert taker.peer.answers == [(5, 3)]
    assert taker.told == [KvCopied(hashes=hashes(1, 2, 3), names=names(1, 2, 3))]
    assert taker.counters.store_copied == 3
    assert taker.counters.store_pulled == 0
    assert len(taker.copies) == 0


def test_what_the_store_has_is_not_pulled_and_counts_as_used() -> None:
    taker = Taker()
    taker.offer(1, 1, 2)
    taker.end()
    taker.now = 8.0
    taker.offer(2, 1, 2)
    assert taker.peer.answers == [(1, 2), (2, 2)]
    assert taker.under_way == {}
    taker.offer(3, 2, 3)
    ((_, spec, _),) = taker.under_way.values()
    assert spec.hashes == hashes(3)
    taker.end()
    taker.now = 12.0
    assert taker.held(1, 2) == 2, "the time to live runs from the last offer"
    assert taker.told[-1].hashes == hashes(3)


def test_offers_without_names_are_not_told() -> None:
    taker = Taker()
    taker.offer(1, 1, 2, named=False)
    taker.end()
    assert taker.told == []
    assert taker.held(1, 2) == 2


@pytest.mark.parametrize("ended", [DAMAGED, Ended(Code.KV_TRANSFER_FAILED, "refused", "", 1)])
def test_what_fails_frees_its_slots(ended: Ended) -> None:
    taker = Taker()
    taker.offer(1, 1, 2)
    taker.end(ended)
    assert taker.held(1) == 0
    assert taker.peer.answers == [(1, 0)]
    assert (taker.counters.store_copied, taker.counters.copies_failed) == (0, 1)
    assert taker.told == []
    taker.offer(2, *range(1, SLOTS + 1))
    ((_, spec, _),) = taker.under_way.values()
    assert spec.blocks == SLOTS, "all slots are free again"


def test_a_block_for_which_there_is_no_room_ends_the_offer() -> None:
    taker = Taker(slots=2)
    taker.offer(1, 1, 2, 3)
    ((_, spec, _),) = taker.under_way.values()
    assert spec.hashes == hashes(1, 2)
    taker.offer(2, 4)
    taker.end()
    assert taker.peer.answers == [(2, 0), (1, 2)]


def test_few_pulls_are_under_way_and_one_while_handoffs_are() -> None:
    taker = Taker(slots=64)
    for at in range(1, 5):
        taker.offer(at, at)
    assert len(taker.under_way) == COPIES_MAX
    taker.handoffs = 1
    taker.end()
    taker.end()
    assert len(taker.under_way) == 1
    taker.handoffs = 0
    taker.copies.tick()
    assert len(taker.under_way) == COPIES_MAX
    taker.end()
    taker.end()
    assert [offer for offer, _ in taker.peer.answers] == [1, 2, 3, 4]


def test_few_offers_wait() -> None:
    taker = Taker(slots=128)
    for at in range(COPIES_MAX + OFFERS_WAITING_MAX):
        taker.offer(at, at)
    assert taker.peer.answers == []
    taker.offer(999, 999)
    assert taker.peer.answers == [(999, 0)]


def test_with_its_channel_an_offer_is_over() -> None:
    taker = Taker(slots=64)
    for at in range(1, 6):
        taker.offer(at, at)
    taker.copies.on_channel_closed(taker.peer)  # type: ignore[arg-type]
    assert len(taker.copies) == 0
    assert taker.under_way == {}
    assert taker.held(1) == 0
    assert taker.counters.copies_failed == 0, "nobody is to blame"


def test_without_a_table_nothing_is_taken() -> None:
    taker = Taker()
    taker.copies.table = None
    taker.offer(1, 1)
    assert taker.peer.answers == [(1, 0)]


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (b"", b""),
        (hashes(1)[:-1], b""),
        (hashes(*range(OFFER_BLOCKS_MAX + 1)), b""),
        (hashes(1, 2), names(1)),
    ],
)
def test_what_no_worker_sends_costs_the_link(wanted: bytes, named: bytes) -> None:
    taker = Taker()
    message = KvOffer(offer=1, kv_address="h:1", hashes=wanted, names=named)
    taker.copies.on_offer(taker.peer, message)  # type: ignore[arg-type]
    assert "no worker makes" in taker.peer.closed
    assert len(taker.copies) == 0


def test_another_receive_is_not_taken_for_a_copy() -> None:
    taker = Taker()
    taker.offer(1, 1)
    ((ticket, _, _),) = taker.under_way.values()
    other = msgspec.structs.replace(ticket, request_id="r")
    assert not taker.copies.on_receive_ended(other, KvReport(), Ended("", ""))


def test_a_control_frame_holds_an_offer() -> None:
    offer = KvOffer(
        offer=1 << 60,
        kv_address="2001:db8:0000:0000:0000:0000:0000:0000:65535",
        hashes=bytes(32 * OFFER_BLOCKS_MAX),
        names=bytes(8 * OFFER_BLOCKS_MAX),
    )
    assert len(encode(offer)) <= CONTROL_FRAME_BYTES - HEAD_BYTES


class Below:
    """A disk that has these blocks."""

    def __init__(self, *blocks: int) -> None:
        self.names = [BlockName(0, hashes(at)) for at in blocks]
        self.used: list[BlockName] = []

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def note_used(self, names: Sequence[BlockName]) -> None:
        self.used += names


def test_what_the_disk_of_the_store_has_is_not_pulled_again() -> None:
    taker = Taker()
    below = Below(1, 3)
    taker.copies.below = below  # type: ignore[assignment]
    taker.offer(1, 1, 2, 3)
    ((_, spec, _),) = taker.under_way.values()
    assert spec.hashes == hashes(2)
    taker.end()
    assert taker.peer.answers == [(1, 3)], "it is held, wherever"
    assert [name.block_hash for name in below.used] == [hashes(at) for at in (1, 2, 3)]


def test_copies_belong_to_whom_the_offer_says() -> None:
    taker = Taker()
    taker.offer(1, 1, owner=b"owner-12")
    (slot,) = next(iter(taker.under_way.values()))[2]
    assert taker.table.owner_in(slot) == b"owner-12"
    taker.offer(2, 2, owner=b"owner")
    assert taker.peer.closed == "an offer that no worker makes"


def test_the_engine_is_to_have_the_blocks_of_a_stream_that_goes_on_here() -> None:
    """Those that are here, whether they came now or before; and it may have no work otherwise."""
    taker = Taker()
    taker.offer(1, 1, 2)
    taker.end()
    assert list(taker.table.ahead) == [], "a mere copy"
    taker.told.clear()
    taker.offer(2, 1, 2, goes_on=True)
    assert list(taker.table.ahead) == [BlockName(0, hashes(1)), BlockName(0, hashes(2))]
    assert taker.told == [KvCopied(hashes=b"", names=b"", ahead=True)]
    taker.table.ahead.clear()
    taker.offer(3, 2, 3, goes_on=True)
    assert list(taker.table.ahead) == [], "they have not come yet"
    taker.end()
    assert list(taker.table.ahead) == [BlockName(0, hashes(2)), BlockName(0, hashes(3))]
    assert [copied.ahead for copied in taker.told] == [True, False, True]


def test_what_of_such_a_stream_did_not_come_is_not_named() -> None:
    taker = Taker()
    taker.offer(1, 1)
    taker.end()
    taker.told.clear()
    taker.offer(2, 1, 2, goes_on=True)
    taker.end(Ended(Code.KV_TRANSFER_FAILED, "the link is down"))
    assert list(taker.table.ahead) == [BlockName(0, hashes(1))]
    taker.table.ahead.clear()
    taker.told.clear()
    taker.offer(3, 2, goes_on=True)
    taker.end(Ended(Code.KV_TRANSFER_FAILED, "the link is down"))
    assert (list(taker.table.ahead), taker.told) == ([], [])
