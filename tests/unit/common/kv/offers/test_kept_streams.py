"""The KV of streams that leave this D: it is for the next D once, is refused where it is not there,
and is freed by itself, in whichever order the engine, the daemon and the next D come."""

from __future__ import annotations

import pytest

from common.errors import Code
from common.kv.messages import KvReleased
from common.kv.offers.kept_streams import KeptStreams
from common.kv.peers.channel import WorkerIdentity
from tests.rigs.messages import ticket
from tests.unit.common.kv.sides.test_send import KEY, Bench

NEXT = ticket("r", 1, lease_ms=60_000.0)
GIVEN_UP = Code.CANCELLED


@pytest.fixture
def sending() -> Bench:
    return Bench(shared=False)


@pytest.fixture
def kept(sending: Bench) -> KeptStreams:
    identity = WorkerIdentity("p0", "inc-p0", "f")
    return KeptStreams(
        identity,
        sending.side,
        keep_ms=2_000.0,
        on_ended=sending.on_ended,
        clock=lambda: sending.now,
    )


def tick(sending: Bench, kept: KeptStreams) -> None:
    sending.side.tick()
    kept.tick()


def held(sending: Bench, kept: KeptStreams) -> int:
    return len(sending.side) + len(kept)


def take(bench: Bench) -> None:
    """D asks for the four blocks of the next attempt and gets them."""
    bench.ready(4, granted=2, handed=NEXT)
    assert len(bench.memory.headers) == 2
    bench.hear(KvReleased(7))


def test_what_is_kept_is_for_the_next_ticket_and_ends_as_the_attempt_that_the_engine_knows(
    sending: Bench,
    kept: KeptStreams,
) -> None:
    kept.expect(KEY)
    kept.keep(KEY, range(4))
    kept.hand_over(KEY, NEXT)
    take(sending)
    assert sending.over == [(0, "")]
    assert not held(sending, kept)


@pytest.mark.parametrize("order", ["ticket first", "engine first"])
def test_the_ticket_may_come_before_the_blocks(
    sending: Bench, kept: KeptStreams, order: str
) -> None:
    if order == "engine first":
        kept.keep(KEY, range(4))
    kept.expect(KEY)
    kept.hand_over(KEY, NEXT)
    if order == "ticket first":
        kept.keep(KEY, range(4))
    take(sending)
    assert sending.over == [(0, "")]
    assert not held(sending, kept)


def test_d_may_ask_before_everything_else(sending: Bench, kept: KeptStreams) -> None:
    sending.ready(4, granted=2, handed=NEXT)
    kept.expect(KEY)
    kept.hand_over(KEY, NEXT)
    assert sending.memory.headers == []
    kept.keep(KEY, range(4))
    assert len(sending.memory.headers) == 2


def test_nobody_can_ask_for_what_is_kept_without_a_ticket(
    sending: Bench, kept: KeptStreams
) -> None:
    kept.keep(KEY, range(4))
    sending.ready(4, granted=2, handed=NEXT)
    assert (sending.memory.headers, sending.over) == ([], [])


@pytest.mark.parametrize("announced", [False, True])
def test_what_is_not_all_there_is_refused_at_once(
    sending: Bench, kept: KeptStreams, *, announced: bool
) -> None:
    if announced:
        kept.expect(KEY)
    kept.keep(KEY, [])
    kept.expect(KEY)
    assert sending.over[-1] == (0, GIVEN_UP)
    kept.hand_over(KEY, NEXT)
    sending.ready(4, granted=2, handed=NEXT)
    assert sending.peer.refused == ["the ticket has ended"]
    assert not held(sending, kept)


def test_what_nobody_takes_is_freed_after_its_time_and_refused_after_that(
    sending: Bench, kept: KeptStreams
) -> None:
    kept.keep(KEY, range(4))
    sending.now = 1.9
    tick(sending, kept)
    assert sending.over == []
    sending.now = 2.0
    tick(sending, kept)
    assert sending.over == [(0, Code.KV_TRANSFER_FAILED)]
    assert sending.counters.leases_expired == 0, "nobody was promised anything"
    kept.hand_over(KEY, NEXT)
    sending.ready(4, granted=2, handed=NEXT)
    assert sending.peer.refused == ["the ticket has ended"]


@pytest.mark.parametrize("handed", [False, True])
def test_an_engine_that_never_keeps_what_was_announced_is_not_waited_for(
    sending: Bench, kept: KeptStreams, *, handed: bool
) -> None:
    kept.expect(KEY)
    if handed:
        kept.hand_over(KEY, NEXT)
        sending.ready(4, granted=2, handed=NEXT)
    assert held(sending, kept)
    sending.now = 2.0
    tick(sending, kept)
    assert sending.over == [(0, GIVEN_UP)]
    assert len(sending.peer.refused) == handed
    assert not held(sending, kept)


def test_a_stream_that_was_released_is_not_kept(sending: Bench, kept: KeptStreams) -> None:
    sending.side.release(KEY, "its client left")
    kept.keep(KEY, range(4))
    assert sending.over == [(0, GIVEN_UP)]
    assert not held(sending, kept)


def test_an_old_release_does_not_end_what_another_worker_takes(
    sending: Bench, kept: KeptStreams
) -> None:
    kept.keep(KEY, range(4))
    kept.hand_over(KEY, NEXT)
    sending.side.release(KEY, "late")
    take(sending)
    assert sending.over == [(0, "")]
