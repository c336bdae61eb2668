"""P's counter: every granted message is answered exactly once, every offer ends exactly once."""

import msgspec
import pytest

from common.errors import Code
from common.kv.handoff.desk import GRACE_S, OTHER_TICKET, PARKED, Desk, Out, Peer
from common.kv.handoff.tally import Tally
from common.kv.handoff.words import Ended, SendData, SendVoid, Stage, Tell
from common.kv.messages import KvAbort, KvCredit, KvReady, KvRefused, KvReleased
from tests.unit.common.kv.handoff.helpers import D0, SHAPE, ready, ticket

KEY = ("r", 0)


@pytest.fixture
def desk() -> Desk:
    return Desk(SHAPE, buffer_bytes=400, lease_ms=1000, tally=Tally())


def stages(outs: list[Out]) -> list[int]:
    return [out.action.index for out in outs if isinstance(out.action, Stage)]


def voids(outs: list[Out]) -> list[int]:
    return [out.action.slot for out in outs if isinstance(out.action, SendVoid)]


def sent(outs: list[Out]) -> list[int]:
    return [out.action.index for out in outs if isinstance(out.action, SendData)]


def ends(outs: list[Out]) -> list[str]:
    return [out.action.error for out in outs if isinstance(out.action, Ended)]


def refusals(outs: list[Out]) -> list[str]:
    return [
        out.action.message.message
        for out in outs
        if isinstance(out.action, Tell) and isinstance(out.action.message, KvRefused)
    ]


def offered(desk: Desk, *, blocks: int = 10, granted: int = 3) -> list[Out]:
    assert desk.offer(ticket(), blocks, now=0.0) == []
    return desk.ready(D0, ready(granted=granted), now=0.0)


@pytest.mark.parametrize("early", [True, False])
def test_a_second_ticket_of_an_attempt_is_refused_at_once(desk: Desk, early: bool) -> None:
    other = msgspec.structs.replace(ready(transfer=8, granted=2), secret=b"other".ljust(16, b"#"))
    outs = [] if not early else desk.ready(D0, other, now=0.0)
    outs += desk.offer(ticket(), 10, now=0.0) or []
    outs += [] if early else desk.ready(D0, other, now=0.0)
    assert refusals(outs) == [OTHER_TICKET]
    assert voids(outs) == [0, 1]
    desk.ready(D0, ready(), now=0.0)
    assert stages(desk.computed(KEY, 10)) == [0], "the first ticket is served"
    desk.check_invariants()


def test_a_message_is_staged_when_both_granted_and_computed(desk: Desk) -> None:
    assert offered(desk, granted=1) == []
    assert stages(desk.computed(KEY, 3)) == []
    assert stages(desk.computed(KEY, 4)) == [0]
    assert stages(desk.computed(KEY, 10)) == []
    assert stages(desk.credit(D0, KvCredit(transfer=7, granted=3))) == [1, 2]
    assert sent(desk.staged(KEY, 7, 0)) == [0]
    assert sent(desk.staged(KEY, 7, 0)) == []
    desk.check_invariants()


def test_released_ends_it_and_leaves_nothing(desk: Desk) -> None:
    offered(desk)
    desk.computed(KEY, 10)
    for index in range(3):
        assert sent(desk.staged(KEY, 7, index)) == [index]
    assert ends(desk.released(KvReleased(transfer=7))) == [""]
    assert len(desk) == 0
    assert desk.holds() == []
    assert desk.released(KvReleased(transfer=7)) == []
    assert desk.tick(99.0) == []


@pytest.mark.parametrize("sent_before", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["daemon", "d", "expiry"])
def test_every_interrupted_prefix_voids_exactly_the_unanswered(
    desk: Desk, sent_before: int, how: str
) -> None:
    offered(desk)
    desk.computed(KEY, 10)
    for index in range(sent_before):
        desk.staged(KEY, 7, index)
    if how == "daemon":
        outs = desk.release(KEY, "client gone")
    elif how == "d":
        outs = desk.aborted(D0, KvAbort(transfer=7, reason="deadline"))
    else:
        assert desk.tick(0.999) == []
        outs = desk.tick(1.0)
    assert voids(outs) == list(range(sent_before, 3))
    assert len(ends(outs)) == 1
    assert bool(refusals(outs)) == (how != "d")
    assert len(desk) == 0
    desk.check_invariants()
    assert desk.staged(KEY, 7, sent_before) == []
    assert desk.computed(KEY, 10) == []
    assert desk.release(KEY, "again") == []


def test_a_credit_that_crossed_the_end_is_still_answered_with_voids(desk: Desk) -> None:
    offered(desk, granted=1)
    desk.release(KEY, "gone")
    assert voids(desk.credit(D0, KvCredit(transfer=7, granted=3))) == [1, 2]
    assert voids(desk.credit(D0, KvCredit(transfer=7, granted=3))) == []


def test_ready_before_its_ticket_waits_and_is_served(desk: Desk) -> None:
    assert desk.ready(D0, ready(granted=1), now=0.0) == []
    assert desk.credit(D0, KvCredit(transfer=7, granted=2)) == []
    assert desk.offer(ticket(), 10, now=0.5) == []
    assert stages(desk.computed(KEY, 10)) == [0, 1]


def test_an_early_ready_waits_as_long_as_d_does(desk: Desk) -> None:
    """P's queue may be longer than a lease, which only runs from the offer."""
    early = msgspec.structs.replace(ready(granted=1), patience_ms=5000.0)
    desk.ready(D0, early, now=0.0)
    assert desk.tick(4.9) == []
    assert refusals(desk.tick(5.0)) == ["no such ticket came"]


def test_a_repeated_early_ready_is_answered_once(desk: Desk) -> None:
    assert desk.ready(D0, ready(granted=2), now=0.0) == []
    assert desk.ready(D0, ready(granted=2), now=0.1) == []
    outs = desk.release(KEY, "client gone")
    assert voids(outs) == [0, 1]
    assert desk.ready(D0, ready(granted=2), now=0.2) == []


def test_a_newer_early_ready_takes_the_place_of_an_older(desk: Desk) -> None:
    desk.ready(D0, ready(granted=2), now=0.0)
    assert voids(desk.ready(D0, ready(transfer=8, granted=1), now=0.1)) == [0, 1]
    assert desk.offer(ticket(), 10, now=0.2) == []
    assert stages(desk.computed(KEY, 10)) == [0]
    assert desk.sender(KEY).transfer == 8  # type: ignore[union-attr]


def test_an_early_ready_expires_with_voids_and_a_refusal(desk: Desk) -> None:
    desk.ready(D0, ready(granted=1), now=0.0)
    desk.credit(D0, KvCredit(transfer=7, granted=2))
    outs = desk.tick(1.0)
    assert voids(outs) == [0, 1]
    assert refusals(outs)
    assert len(desk) == 0


def test_an_early_ready_can_be_aborted_and_its_offer_is_then_refused(desk: Desk) -> None:
    desk.ready(D0, ready(granted=2), now=0.0)
    assert voids(desk.aborted(D0, KvAbort(transfer=7, reason="x"))) == [0, 1]
    assert desk.offer(ticket(), 10, now=0.1) is None


def test_a_release_before_the_offer_refuses_the_offer(desk: Desk) -> None:
    assert desk.release(KEY, "client gone") == []
    assert desk.offer(ticket(), 10, now=0.0) is None
    outs = desk.ready(D0, ready(), now=0.0)
    assert refusals(outs)
    assert voids(outs) == [0]


def test_a_release_refuses_what_waits_for_the_offer(desk: Desk) -> None:
    desk.ready(D0, ready(granted=2), now=0.0)
    outs = desk.release(KEY, "client gone")
    assert refusals(outs) == ["client gone"]
    assert voids(outs) == [0, 1]
    assert len(desk) == 0


def test_a_ticket_serves_only_the_worker_and_incarnation_it_names(desk: Desk) -> None:
    desk.offer(ticket(), 10, now=0.0)
    for stranger in (Peer(2, "d1", "inc-d"), Peer(3, "d0", "older")):
        outs = desk.ready(stranger, ready(transfer=stranger.id), now=0.0)
        assert refusals(outs)
        assert voids(outs) == [0]
    assert stages(desk.ready(D0, ready(), now=0.0) + desk.computed(KEY, 10)) == [0]


def test_a_retry_replaces_the_transfer_and_voids_the_older(desk: Desk) -> None:
    offered(desk)
    desk.computed(KEY, 10)
    desk.staged(KEY, 7, 0)
    outs = desk.ready(D0, ready(transfer=8, first_block=4, blocks=6, granted=2), now=0.1)
    assert voids(outs) == [1, 2]
    assert stages(outs) == [0, 1]
    assert desk.staged(KEY, 7, 1) == []
    assert desk.released(KvReleased(transfer=7)) == []
    assert ends(desk.released(KvReleased(transfer=8))) == [""]


def test_a_repeated_ready_changes_nothing(desk: Desk) -> None:
    offered(desk)
    assert stages(desk.computed(KEY, 10)) == [0, 1, 2]
    assert desk.ready(D0, ready(granted=3), now=0.1) == []


def test_losing_d_keeps_the_lease_for_a_grace_in_which_d_may_return(desk: Desk) -> None:
    offered(desk)
    desk.computed(KEY, 10)
    assert desk.peer_lost(D0.id, now=0.0) == []
    again = Peer(9, D0.name, D0.incarnation)
    assert stages(desk.ready(again, ready(transfer=8, granted=1), now=0.5)) == [0]


def test_losing_d_for_good_frees_before_the_lease_would_have() -> None:
    desk = Desk(SHAPE, buffer_bytes=400, lease_ms=60_000, tally=Tally())
    desk.offer(ticket(lease_ms=60_000), 10, now=0.0)
    desk.ready(D0, ready(), now=0.0)
    desk.peer_lost(D0.id, now=1.0)
    assert ends(desk.tick(1.0 + GRACE_S)) == [Code.KV_TRANSFER_FAILED]


@pytest.mark.parametrize(
    "bad",
    [
        ready(blocks=11),
        ready(first_block=5, blocks=6),
        ready(first_block=-1),
        ready(message_blocks=0),
        ready(message_blocks=5),
        ready(message_blocks=9, layer_groups=2),
        ready(layer_groups=0),
    ],
)
def test_what_no_honest_peer_asks_is_refused(desk: Desk, bad: KvReady) -> None:
    desk.offer(ticket(), 10, now=0.0)
    outs = desk.ready(D0, bad, now=0.0)
    assert refusals(outs)
    assert voids(outs) == [0]
    desk.check_invariants()


def test_preemption_takes_blocks_back_and_sends_again_only_what_was_not_sent(desk: Desk) -> None:
    offered(desk)
    assert stages(desk.computed(KEY, 8)) == [0, 1]
    desk.staged(KEY, 7, 0)
    assert desk.computed(KEY, 0) == []
    assert desk.staged(KEY, 7, 1) == []
    outs = desk.computed(KEY, 10)
    assert stages(outs) == [1, 2]
    assert sent(desk.staged(KEY, 7, 1)) == [1]


def test_layers_leave_while_later_ones_are_computed(desk: Desk) -> None:
    """Two groups of one layer: index 2r is the first layer of run r, 2r + 1 the second."""
    desk.offer(ticket(), 10, now=0.0)
    desk.ready(D0, ready(granted=6, layer_groups=2), now=0.0)
    assert stages(desk.ahead(KEY, 8, 1)) == [0, 2]
    assert sent(desk.staged(KEY, 7, 2)) == [2]
    assert stages(desk.ahead(KEY, 8, 1)) == []
    assert stages(desk.computed(KEY, 8)) == [1, 3]
    assert stages(desk.ahead(KEY, 10, 1)) == [4]
    assert stages(desk.computed(KEY, 10)) == [5]
    desk.check_invariants()


def test_layers_ahead_are_void_when_the_step_did_not_come_to_its_end(desk: Desk) -> None:
    """Preemption: what was told ahead and not yet copied is not read."""
    desk.offer(ticket(), 10, now=0.0)
    desk.ready(D0, ready(granted=6, layer_groups=2), now=0.0)
    assert stages(desk.ahead(KEY, 8, 1)) == [0, 2]
    assert stages(desk.computed(KEY, 0)) == []
    assert sent(desk.staged(KEY, 7, 0)) == []
    desk.check_invariants()
    assert stages(desk.computed(KEY, 4)) == [0, 1]


def test_slots_are_used_in_order_whatever_message_goes_into_them(desk: Desk) -> None:
    desk.offer(ticket(), 10, now=0.0)
    desk.ready(D0, ready(granted=2, layer_groups=2), now=0.0)
    assert stages(desk.ahead(KEY, 10, 1)) == [0, 2], "no more than there are slots"
    slots = [
        (out.action.index, out.action.slot)
        for index in (2, 0)
        for out in desk.staged(KEY, 7, index)
        if isinstance(out.action, SendData)
    ]
    assert slots == [(2, 0), (0, 1)]
    assert stages(desk.credit(D0, KvCredit(transfer=7, granted=4))) == [4]


def test_nothing_wanted_releases_at_once(desk: Desk) -> None:
    desk.offer(ticket(), 10, now=0.0)
    assert ends(desk.ready(D0, ready(blocks=0, granted=0), now=0.0)) == [""]
    assert len(desk) == 0


def test_early_requests_are_bounded(desk: Desk) -> None:
    for at in range(PARKED):
        assert desk.ready(D0, ready(at, request_id=f"q{at}"), now=0.0) == []
    outs = desk.ready(D0, ready(9999, request_id="late"), now=0.0)
    assert refusals(outs)
    assert len(desk) == PARKED


def test_a_duplicate_offer_is_refused_and_the_first_lives(desk: Desk) -> None:
    offered(desk)
    assert desk.offer(ticket(), 10, now=0.1) is None
    assert stages(desk.computed(KEY, 4)) == [0]
