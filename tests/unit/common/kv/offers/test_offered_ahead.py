"""A stream that is followed: it is told once when its holder has its blocks, or gets no more."""

from __future__ import annotations

import msgspec
import pytest

from common.kv.handoff.counters import HandoffCounters
from common.kv.messages import KvTaken
from common.kv.offers import offered
from common.kv.offers.offered import RETRY_S, TRIES_MAX, StoreOffers
from common.messages import KvHolder
from tests.unit.common.kv.offers.test_offered import ANSWER_S, HOLDER, Holder, hashes, names

KEY = ("r", 1)
OTHER = KvHolder(name="d3", incarnation="inc-d2", fingerprint="f", kv_address="h:3")


class Following:
    """A stream whose blocks go to `HOLDER`, over one channel."""

    def __init__(self) -> None:
        self.now, self.channel = 0.0, Holder()
        self.told: list[tuple[tuple[str, int], int, str]] = []
        self.side = StoreOffers(
            1024,
            ANSWER_S,
            HandoffCounters(),
            lambda: self.now,
            lambda _: self.channel,  # type: ignore[arg-type,return-value]
            on_followed=lambda *told: self.told.append(told),
        )

    def add(self, *blocks: int, holder: KvHolder = HOLDER) -> None:
        self.side.add(KEY, holder, hashes(*blocks), names(*blocks), max(blocks))

    def answer(self, blocks: int) -> None:
        message = KvTaken(offer=self.channel.offers[-1].offer, blocks=blocks)
        self.side.on_taken(self.channel, message)  # type: ignore[arg-type]


def test_it_is_told_when_the_holder_lacks_few_enough() -> None:
    rig = Following()
    rig.side.follow(KEY, HOLDER, 1)
    rig.add(1, 2)
    rig.add(3, 4)
    assert rig.told == [], "nothing is there yet"
    rig.answer(2)
    assert rig.told == [], "two are missing"
    rig.answer(1)
    assert rig.told == [(KEY, 3, "")]
    rig.now += RETRY_S
    rig.side.tick()
    rig.answer(1)
    assert len(rig.told) == 1, "once"


def test_a_holder_that_has_all_is_told_of_at_once() -> None:
    rig = Following()
    rig.add(1, 2)
    rig.answer(2)
    rig.side.follow(KEY, HOLDER, 0)
    assert rig.told == [(KEY, 2, "")]


def test_what_another_holder_has_is_not_told() -> None:
    rig = Following()
    rig.add(1, holder=OTHER)
    rig.side.follow(KEY, HOLDER, 1)
    assert rig.told == []
    rig.add(1, 2)
    assert rig.told == [], "it begins anew"
    assert rig.channel.offers[-1].hashes == hashes(1, 2)


def test_a_new_holder_gets_the_stream_from_its_beginning() -> None:
    rig = Following()
    rig.channel.peer = None  # type: ignore[assignment]
    rig.add(1, 2, holder=OTHER)
    assert len(rig.side) == 2
    rig.add(1)
    assert len(rig.side) == 1
    (row,) = rig.side.checkpoints(9)
    assert (row.holder, row.blocks, row.held) == ("d2", 1, 0)


def test_the_answer_of_the_holder_before_is_ignored() -> None:
    rig = Following()
    rig.add(1, holder=KvHolder(name="d2", incarnation="inc-d2", fingerprint="x", kv_address="h:2"))
    late = KvTaken(offer=rig.channel.offers[-1].offer, blocks=1)
    rig.side.follow(KEY, HOLDER, 0)
    rig.add(1)
    rig.side.on_taken(rig.channel, late)  # type: ignore[arg-type]
    assert rig.told == []
    rig.answer(1)
    assert rig.told == [(KEY, 1, "")]


def test_a_holder_that_refuses_is_told_with_the_reason() -> None:
    rig = Following()
    rig.side.follow(KEY, HOLDER, 0)
    rig.add(1, 2)
    for _ in range(TRIES_MAX):
        assert rig.told == []
        rig.answer(0)
        rig.now += RETRY_S + 0.1
        rig.side.tick()
    assert rig.told == [(KEY, 0, "2 blocks were skipped")]


def test_a_holder_that_never_answers_is_told_with_the_reason() -> None:
    rig = Following()
    rig.side.follow(KEY, HOLDER, 0)
    rig.add(1)
    for _ in range(TRIES_MAX):
        rig.now += ANSWER_S + RETRY_S + 0.1
        rig.side.tick()
        rig.now += RETRY_S
        rig.side.tick()
    assert [why for _, _, why in rig.told] == ["1 blocks were skipped"]


def test_a_full_backlog_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offered, "BACKLOG_MAX", 1)
    rig = Following()
    rig.side.follow(KEY, HOLDER, 0)
    rig.add(1, 2)
    assert [(held, bool(why)) for _, held, why in rig.told] == [(0, True)]


def test_a_stream_that_is_over_is_not_told() -> None:
    rig = Following()
    rig.side.follow(KEY, HOLDER, 9)
    rig.side.over(KEY)
    rig.add(1)
    assert rig.told == []


def test_few_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offered, "STREAMS_MAX", 1)
    rig = Following()
    rig.side.follow(("other", 1), HOLDER, 9)
    rig.side.follow(KEY, HOLDER, 9)
    rig.add(1)
    assert rig.told == []


def test_the_holder_learns_whether_the_stream_is_to_go_on_there() -> None:
    rig = Following()
    rig.add(1)
    rig.answer(1)
    rig.add(1, 2, holder=msgspec.structs.replace(HOLDER, goes_on=True))
    assert [offer.goes_on for offer in rig.channel.offers] == [False, True]
