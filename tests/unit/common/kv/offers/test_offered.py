"""Blocks that this worker offers to another holder: in order, few at a time, again if in vain."""

from __future__ import annotations

import msgspec
import pytest

from common.kv.handoff.counters import HandoffCounters
from common.kv.messages import OFFER_BLOCKS_MAX, ConnectedPeer, KvOffer, KvTaken
from common.kv.offers import offered
from common.kv.offers.offered import OFFER_BYTES, OFFERS_MAX, RETRY_S, TRIES_MAX, StoreOffers
from common.messages import KvCheckpoint, KvHolder

ANSWER_S = 10.0
OWNER = b"owner-12"
HOLDER = KvHolder(name="d2", incarnation="inc-d2", fingerprint="f", kv_address="h:2")


def hashes(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32, "big") for number in numbers)


def names(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers)


class Holder:
    """A channel to d2."""

    def __init__(self) -> None:
        self.peer, self.closed = ConnectedPeer(1, "d2", "inc-d2"), False
        self.offers: list[KvOffer] = []

    def send(self, message: msgspec.Struct) -> None:
        assert isinstance(message, KvOffer)
        self.offers.append(message)


class Offering:
    def __init__(self, block_bytes: int = 1024) -> None:
        self.now, self.counters = 0.0, HandoffCounters()
        self.channel: Holder | None = Holder()
        self.side = StoreOffers(
            block_bytes,
            ANSWER_S,
            self.counters,
            lambda: self.now,
            lambda _: self.channel,  # type: ignore[arg-type,return-value]
            on_followed=lambda *_: None,
        )
        self.side.kv_address = "h:1"

    def add(self, *blocks: int, stream: str = "r", named: bool = True) -> None:
        ours = names(*blocks) if named else b""
        self.side.add((stream, 1), HOLDER, hashes(*blocks), ours, max(blocks), OWNER)

    @property
    def offers(self) -> list[KvOffer]:
        assert self.channel is not None
        return self.channel.offers

    def answer(self, blocks: int, at: int = -1, channel: Holder | None = None) -> None:
        message = KvTaken(offer=self.offers[at].offer, blocks=blocks)
        self.side.on_taken(channel or self.channel, message)  # type: ignore[arg-type]

    def progress(self, stream: str = "r") -> tuple[int, int]:
        (row,) = [row for row in self.side.checkpoints(99) if row.request_id == stream]
        return row.blocks, row.held


def test_blocks_are_offered_in_order_and_one_offer_of_a_stream_at_a_time() -> None:
    rig = Offering()
    rig.add(1, 2)
    (offer,) = rig.offers
    assert (offer.kv_address, offer.hashes, offer.names) == ("h:1", hashes(1, 2), names(1, 2))
    rig.add(3)
    rig.add(4)
    assert len(rig.offers) == 1
    assert rig.progress() == (4, 0)
    rig.answer(2)
    assert rig.offers[1].hashes == hashes(3, 4)
    assert rig.offers[1].offer != rig.offers[0].offer
    assert rig.progress() == (4, 2)
    rig.answer(2)
    assert rig.progress() == (4, 4)
    assert rig.side.checkpoints(1) == (
        KvCheckpoint(request_id="r", attempt=1, holder="d2", blocks=4, held=4),
    )
    assert (len(rig.side), rig.counters.store_offered) == (0, 4)


@pytest.mark.parametrize(
    ("block_bytes", "most"), [(1, OFFER_BLOCKS_MAX), (OFFER_BYTES // 4, 4), (OFFER_BYTES * 2, 1)]
)
def test_an_offer_is_bounded_in_blocks_and_bytes(block_bytes: int, most: int) -> None:
    rig = Offering(block_bytes)
    rig.add(*range(1, 100))
    assert rig.offers[0].hashes == hashes(*range(1, most + 1))


def test_what_has_no_names_is_offered_without() -> None:
    rig = Offering()
    rig.add(1, 2, named=False)
    assert rig.offers[0].names == b""


def test_few_offers_go_to_one_holder_at_a_time() -> None:
    rig = Offering()
    for at in range(OFFERS_MAX + 2):
        rig.add(1, stream=f"r{at}")
    assert len(rig.offers) == OFFERS_MAX
    rig.answer(1, at=0)
    assert len(rig.offers) == OFFERS_MAX + 1
    rig.answer(1, at=1)
    assert len(rig.offers) == OFFERS_MAX + 2


def test_what_was_not_taken_is_offered_again_and_in_the_end_skipped() -> None:
    rig = Offering()
    rig.add(1, 2, 3)
    rig.answer(1)
    assert rig.progress() == (3, 1)
    rig.side.tick()
    assert len(rig.offers) == 1
    for again in range(1, TRIES_MAX):
        rig.now += RETRY_S
        rig.side.tick()
        assert len(rig.offers) == 1 + again
        assert rig.offers[-1].hashes == hashes(2, 3)
        rig.answer(0)
    assert rig.counters.offers_skipped == 2
    rig.add(4)
    rig.now += RETRY_S
    rig.side.tick()
    assert rig.offers[-1].hashes == hashes(4)
    rig.answer(1)
    assert rig.progress() == (4, 1), "a checkpoint has no gap"


def test_a_connection_that_is_lost_or_does_not_stand_is_waited_for() -> None:
    rig = Offering()
    rig.channel = None
    rig.add(1)
    first = rig.channel = Holder()
    rig.side.tick()
    assert len(rig.offers) == 1
    first.closed, rig.channel = True, Holder()
    rig.side.tick()
    rig.now += RETRY_S
    rig.side.tick()
    assert len(rig.offers) == 1
    rig.answer(1, channel=first)
    assert rig.progress() == (1, 0), "that channel is gone"
    rig.answer(1)
    assert rig.progress() == (1, 1)


def test_a_holder_that_does_not_answer_is_asked_again_after_a_while() -> None:
    rig = Offering()
    rig.add(1)
    rig.now += ANSWER_S - 0.1
    rig.side.tick()
    assert len(rig.offers) == 1
    rig.now += 0.2
    rig.side.tick()
    rig.answer(1)
    assert rig.progress() == (1, 0), "that offer was given up"
    rig.now += RETRY_S
    rig.side.tick()
    assert len(rig.offers) == 2


def test_another_incarnation_at_the_address_gets_nothing() -> None:
    rig = Offering()
    assert rig.channel is not None
    rig.channel.peer = ConnectedPeer(1, "d2", "inc-newer")
    rig.add(1, 2)
    assert rig.offers == []
    assert (len(rig.side), rig.counters.offers_skipped) == (0, 2)


def test_a_stream_that_is_over_is_not_offered_any_more() -> None:
    rig = Offering()
    rig.add(1)
    rig.add(2)
    rig.side.over(("r", 1))
    rig.side.over(("r", 1))
    rig.answer(1)
    assert len(rig.offers) == 1
    assert (len(rig.side), rig.side.checkpoints(9)) == (0, ())


def test_streams_and_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offered, "STREAMS_MAX", 2)
    monkeypatch.setattr(offered, "BACKLOG_MAX", 3)
    rig = Offering()
    rig.add(1, 2)
    rig.add(1, 2, stream="s")
    assert (len(rig.side), rig.counters.offers_skipped) == (3, 1)
    rig.add(1, stream="t")
    assert rig.counters.offers_skipped == 2
    rig.answer(2, at=0)
    rig.add(3, stream="s")
    rig.answer(1, at=1)
    assert len(rig.offers) == 2
    assert rig.progress("s") == (3, 1), "the second was skipped, and what follows with it"
    assert rig.counters.offers_skipped == 3


def test_an_answer_that_claims_more_than_was_offered_counts_as_all() -> None:
    rig = Offering()
    rig.add(1)
    rig.answer(99)
    assert rig.progress() == (1, 1)


def test_an_offer_says_whose_blocks_they_are() -> None:
    rig = Offering()
    rig.add(1, 2)
    assert [offer.owner for offer in rig.offers] == [OWNER]
