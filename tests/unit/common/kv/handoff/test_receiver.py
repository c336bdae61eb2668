"""D's end: nothing is counted twice or unverified, retries are bounded, it ends exactly once."""

import pytest

from common.errors import Code
from common.kv.checksum.header import NOT_YET, Arrival, Verdict
from common.kv.handoff.protocol import (
    RECEIVE_TERMINAL,
    Action,
    Arrived,
    Cancel,
    Connect,
    Connected,
    ConnectFailed,
    Ended,
    PeerLost,
    Post,
    Posted,
    ReceiveEvent,
    ReceiveState,
    SendControl,
    Start,
    Tick,
)
from common.kv.handoff.receiver import FetchSpec, Receiver
from common.kv.messages import KvAbort, KvCredit, KvReady, KvRefused, KvReleased
from common.kv.plan import Chunking, TransferChunking
from tests.rigs.messages import ticket
from tests.unit.common.kv.handoff.helpers import SHAPE

PEER = 5


def uniform() -> float:
    return 0.5


def receiver(*, blocks: int = 10, window: int = 2, retries: int = 3) -> Receiver:
    wanted = FetchSpec(
        first_block=2,
        blocks=blocks,
        shape=SHAPE,
        chunking=chunking(4, window),
        deadline=15.0,
        retries=retries,
    )
    made = Receiver(ticket(), wanted, uniform)
    assert made.handle(Start(), 0.0) == [Connect()]
    return made


def chunking(message_blocks: int, window: int) -> TransferChunking:
    """The same for messages sent and loaned."""
    return TransferChunking(
        wire=Chunking(message_blocks, window), loan=Chunking(message_blocks, window)
    )


def connected(
    made: Receiver, transfer: int = 1, peer: int = PEER, now: float = 0.0, *, loan: bool = False
) -> KvReady:
    """Connects, posts what is asked, returns the KvReady that follows."""
    (post,) = made.handle(Connected(peer, transfer, loan), now)
    assert isinstance(post, Post)
    (tell,) = made.handle(Posted(transfer, post.upto), now)
    assert isinstance(tell, SendControl)
    assert isinstance(tell.message, KvReady)
    return tell.message


def arrival(index: int, verdict: Verdict = Verdict.OK, early_bytes: int = NOT_YET) -> Arrival:
    return Arrival(verdict, index, early_bytes)


def sent(actions: list[Action], kind: type) -> list[object]:
    return [
        action.message
        for action in actions
        if isinstance(action, SendControl) and isinstance(action.message, kind)
    ]


def errors(actions: list[Action]) -> list[str]:
    return [action.error for action in actions if isinstance(action, Ended)]


def troubles(actions: list[Action]) -> list[str]:
    return [action.trouble for action in actions if isinstance(action, Ended)]


@pytest.fixture
def made() -> Receiver:
    return receiver()


@pytest.mark.parametrize(
    ("lost_before", "event", "trouble"),
    [
        (False, Tick(), ""),
        (True, Tick(), "transfer"),
        (True, Cancel("client gone"), ""),
        (False, Arrived(1, arrival(0, Verdict.VOID)), ""),
        (False, KvRefused(transfer=1, code="not_found", message="expired"), ""),
    ],
)
def test_a_pair_is_in_trouble_only_by_damage_or_a_transport_that_does_not_come_back(
    lost_before: bool, event: ReceiveEvent, trouble: str, made: Receiver
) -> None:
    """A slow P, a full one or a client that left is no evidence against the pair."""
    connected(made)
    if lost_before:
        made.handle(PeerLost(PEER), 1.0)
    assert troubles(made.handle(event, 15.0)) == [trouble]


def test_a_handoff_from_start_to_end(made: Receiver) -> None:
    first = connected(made)
    assert (first.first_block, first.blocks, first.message_blocks, first.granted) == (2, 10, 4, 2)
    assert first.patience_ms == 15_000.0
    (post,) = made.handle(Arrived(1, arrival(0, Verdict.OK)), 1.0)
    assert isinstance(post, Post)
    assert (post.first, post.upto) == (2, 3)
    (credit,) = made.handle(Posted(1, 3), 1.0)
    assert credit == SendControl(PEER, KvCredit(transfer=1, granted=3))
    assert made.handle(Arrived(1, arrival(2, Verdict.OK)), 1.5) == []
    assert [index for index in range(4) if made.lacks(1, index)] == [1]
    last = made.handle(Arrived(1, arrival(1, Verdict.OK)), 2.0)
    assert last == [
        Ended(),
        SendControl(PEER, KvReleased(transfer=1)),
    ]
    report = made.report()
    assert (report.blocks, report.messages, report.payload_bytes) == (10, 3, 1000)
    assert report.complete
    assert report.wire_bytes == 1000 + 3 * 64
    assert (report.wait_ms, report.transfer_ms, report.retries) == (1000.0, 1000.0, 0)
    made.check_invariants()


def test_slots_are_granted_several_at_a_time_and_the_last_at_once() -> None:
    made = receiver(blocks=28, window=4)
    assert connected(made).granted == 4
    granted = []
    for index in range(6):
        for post in made.handle(Arrived(1, arrival(index)), 1.0):
            assert isinstance(post, Post)
            granted.append((index, post.first, post.upto))
            made.handle(Posted(1, post.upto), 1.0)
        made.check_invariants()
    assert granted == [(1, 4, 6), (2, 6, 7)]


def test_a_duplicate_arrival_is_written_and_counted_once(made: Receiver) -> None:
    connected(made)
    assert made.lacks(1, 0)
    made.handle(Arrived(1, arrival(0, Verdict.OK)), 1.0)
    assert not made.lacks(1, 0)
    assert made.handle(Arrived(1, arrival(0, Verdict.OK)), 1.1) == []


def test_a_message_of_an_older_transfer_is_never_written(made: Receiver) -> None:
    connected(made, transfer=1)
    made.handle(Arrived(1, arrival(1, Verdict.CORRUPT)), 1.0)
    connected(made, transfer=2)
    assert not made.lacks(1, 0)
    assert made.lacks(2, 0)
    assert made.handle(Arrived(1, arrival(0, Verdict.OK)), 1.1) == []
    assert made.transfer == 2


def test_damage_is_fetched_again_once_and_only_what_is_missing(made: Receiver) -> None:
    connected(made)
    made.handle(Arrived(1, arrival(0, Verdict.OK)), 1.0)
    assert made.handle(Arrived(1, arrival(1, Verdict.CORRUPT)), 1.1) == [Connect()]
    again = connected(made, transfer=2)
    assert (again.first_block, again.blocks) == (6, 6)
    actions = made.handle(Arrived(2, arrival(0, Verdict.CORRUPT)), 1.2)
    assert errors(actions) == [Code.KV_TRANSFER_FAILED]
    ended = actions[-1]
    assert isinstance(ended, Ended)
    assert ended.trouble == "digest"
    assert sent(actions, KvAbort) == [KvAbort(transfer=2, reason=ended.message)]
    assert made.report().retries == 1


def test_an_abort_between_damage_and_refetch_still_reaches_p(made: Receiver) -> None:
    connected(made)
    made.handle(Arrived(1, arrival(0, Verdict.CORRUPT)), 1.0)
    actions = made.handle(Cancel("client gone"), 1.1)
    assert sent(actions, KvAbort) == [KvAbort(transfer=1, reason="client gone")]


def test_a_lost_connection_backs_off_with_bounded_jitter_and_gives_up() -> None:
    made = receiver(retries=2)
    now = 0.0
    for attempt in range(3):
        connected(made, transfer=attempt, peer=attempt, now=now)
        actions = made.handle(PeerLost(attempt), now)
        if attempt == 2:
            assert errors(actions) == [Code.KV_TRANSFER_FAILED]
            assert troubles(actions) == ["transfer"]
            assert sent(actions, KvAbort) == []
            break
        assert actions == []
        assert made.state is ReceiveState.BACKOFF
        assert now <= made.retry_at <= now + 0.05 * 2**attempt
        assert made.handle(Tick(), now - 1.0) == []
        now = made.retry_at
        assert made.handle(Tick(), now) == [Connect()]
    assert made.report().retries == 2


def test_the_overlap_is_what_p_had_sent_when_its_prefill_ended(made: Receiver) -> None:
    connected(made)
    made.handle(Arrived(1, arrival(0)), 1.0)
    made.handle(Arrived(1, arrival(1, early_bytes=400)), 1.0)
    assert made.report().early_bytes == 400
    made.handle(Arrived(1, arrival(2, early_bytes=1 << 40)), 1.0)
    assert made.report().early_bytes == made.report().payload_bytes == 1000


def test_a_run_counts_only_with_all_its_layer_groups() -> None:
    wanted = FetchSpec(2, 10, SHAPE, chunking(4, 6), 15.0, 3, layer_groups=2)
    made = Receiver(ticket(), wanted, uniform)
    made.handle(Start(), 0.0)
    assert connected(made).layer_groups == 2
    for index in (0, 2, 3):
        assert made.lacks(1, index)
        made.handle(Arrived(1, arrival(index)), 1.0)
    assert made.report().blocks == 0, "the second layer of the first run is not there"
    assert not made.report().complete
    made.handle(PeerLost(PEER), 1.1)
    made.handle(Tick(), 1.2)
    again = connected(made, transfer=2)
    assert (again.first_block, again.blocks) == (2, 10)
    ends = [errors(made.handle(Arrived(2, arrival(index)), 2.0)) for index in (5, 4, 3, 2, 1, 0)]
    assert ends == [[], [], [], [], [], [""]]


def test_each_transfer_is_cut_for_its_wire_or_loans() -> None:
    wanted = FetchSpec(
        0, 10, SHAPE, TransferChunking(wire=Chunking(1, 4), loan=Chunking(2, 2)), 15.0, 3
    )
    made = Receiver(ticket(), wanted, uniform)
    made.handle(Start(), 0.0)
    ready = connected(made, loan=True)
    assert (ready.message_blocks, ready.granted, made.window) == (2, 2, 2)
    made.handle(Arrived(1, arrival(0)), 1.0)
    made.handle(PeerLost(PEER), 1.1)
    made.handle(Tick(), 1.2)
    ready = connected(made, transfer=2)
    assert (ready.first_block, ready.blocks) == (2, 8)
    assert (ready.message_blocks, ready.granted, made.window) == (1, 4, 4)


def test_what_could_not_be_posted_is_asked_for_again_with_each_message() -> None:
    made = receiver(blocks=28, window=4)
    (post,) = made.handle(Connected(PEER, 1), 0.0)
    assert isinstance(post, Post)
    assert (post.first, post.upto, post.due) == (0, 4, True)
    (ready,) = sent(made.handle(Posted(1, 1), 0.0), KvReady)
    assert isinstance(ready, KvReady)
    assert ready.granted == 1
    (post,) = made.handle(Arrived(1, arrival(0)), 1.0)
    assert isinstance(post, Post)
    assert (post.first, post.upto, post.due) == (1, 5, True)
    assert sent(made.handle(Posted(1, 3), 1.0), KvCredit) == [KvCredit(transfer=1, granted=3)]
    (post,) = made.handle(Arrived(1, arrival(1)), 1.0)
    assert isinstance(post, Post)
    assert (post.first, post.upto, post.due) == (3, 6, False)
    assert made.handle(Posted(1, 3), 1.0) == [], "no new slot to grant"
    (post,) = made.handle(Arrived(1, arrival(2)), 1.0)
    assert isinstance(post, Post)
    assert post.due


@pytest.mark.parametrize("drawn", [0.0, 0.25, 0.75])
def test_a_retry_waits_as_long_as_is_drawn(drawn: float) -> None:
    made = Receiver(ticket(), FetchSpec(0, 4, SHAPE, chunking(4, 2), 15.0, 3), lambda: drawn)
    made.handle(Start(), 0.0)
    made.handle(ConnectFailed("refused"), 0.0)
    assert made.retry_at == pytest.approx(0.05 * drawn)


@pytest.mark.parametrize("verdict", [Verdict.VOID, "refused"])
def test_p_giving_up_fails_at_once(verdict: Verdict | str, made: Receiver) -> None:
    connected(made)
    if isinstance(verdict, Verdict):
        actions = made.handle(Arrived(1, arrival(0, verdict)), 1.0)
    else:
        actions = made.handle(KvRefused(transfer=1, code="not_found", message="gone"), 1.0)
    assert errors(actions) == [Code.KV_TRANSFER_FAILED]


def test_a_refusal_of_an_older_transfer_is_ignored(made: Receiver) -> None:
    connected(made, transfer=2)
    assert made.handle(KvRefused(transfer=1, code="x", message="y"), 1.0) == []


def test_a_final_refusal_to_talk_is_not_retried(made: Receiver) -> None:
    actions = made.handle(ConnectFailed("wire version", final=True), 0.1)
    assert errors(actions) == [Code.KV_TRANSFER_FAILED]


def test_a_lost_peer_that_cannot_be_connected_to_again_is_blamed(made: Receiver) -> None:
    connected(made)
    made.handle(PeerLost(PEER), 1.0)
    made.handle(Tick(), 2.0)
    assert made.handle(ConnectFailed("no connection within the time limit"), 3.0) == []
    made.handle(Tick(), 4.0)
    (ended,) = made.handle(ConnectFailed("no connection within the time limit"), 5.0)
    assert isinstance(ended, Ended)
    assert (ended.error, ended.trouble) == (Code.KV_TRANSFER_FAILED, "transfer")


def test_a_first_connection_is_tried_three_times(made: Receiver) -> None:
    for second in (1.0, 2.0):
        assert made.handle(ConnectFailed("no connection within the time limit"), second) == []
        assert made.handle(Tick(), second + 0.5) == [Connect()]
    assert errors(made.handle(ConnectFailed("again"), 3.0)) == [Code.KV_TRANSFER_FAILED]


def _prefixes() -> list[tuple[str, int]]:
    return [(how, steps) for how in ("cancel", "deadline", "lost") for steps in range(6)]


@pytest.mark.parametrize(("how", "steps"), _prefixes())
def test_every_interrupted_prefix_ends_once_and_writes_nothing_after(how: str, steps: int) -> None:
    made = receiver(window=3, retries=0)
    script: list[tuple[ReceiveEvent, float]] = [
        (Connected(PEER, 1), 0.0),
        (Posted(1, 3), 0.0),
        (Arrived(1, arrival(0, Verdict.OK)), 0.1),
        (Arrived(1, arrival(1, Verdict.OK)), 0.2),
        (Arrived(1, arrival(2, Verdict.OK)), 0.3),
    ]
    ended = [error for step in script[:steps] for error in errors(made.handle(*step))]
    interruptions: dict[str, ReceiveEvent] = {
        "cancel": Cancel("x"),
        "deadline": Tick(),
        "lost": PeerLost(PEER),
    }
    event = interruptions[how]
    actions = made.handle(event, 15.0)
    ended += errors(actions)
    if how == "lost" and steps == 0:
        assert ended == []
        return
    assert len(ended) == 1
    assert made.state in RECEIVE_TERMINAL
    assert not any(made.lacks(1, index) for index in range(4))
    notified_p = 2 <= steps < 5 and how != "lost"
    assert bool(sent(actions, KvAbort)) == notified_p
    for index in range(3):
        assert made.handle(Arrived(1, arrival(index, Verdict.OK)), 16.0) == []
    assert made.handle(Cancel("again"), 16.0) == []
    made.check_invariants()


def test_a_fetch_of_no_blocks_notifies_p_and_is_done() -> None:
    made = receiver(blocks=0)
    tell, ended = made.handle(Connected(PEER, 1), 0.0)
    assert isinstance(tell, SendControl)
    assert isinstance(tell.message, KvReady)
    assert tell.message.blocks == 0
    assert ended == Ended()
