"""P's table of tickets: each granted slot is answered once, each offer ends once."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import pytest

from common.errors import Code
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.protocol import (
    Computed,
    Ended,
    ForSender,
    FromPeer,
    HandOver,
    LayersComputed,
    Offer,
    PeerLost,
    Release,
    SendControl,
    SendData,
    SendVoid,
    Stage,
    Staged,
    Tick,
)
from common.kv.handoff.ticket_table import (
    EARLY_READY_MAX,
    GRACE_S,
    OTHER_TICKET,
    TicketAction,
    TicketTable,
)
from common.kv.messages import ConnectedPeer, KvAbort, KvCredit, KvReady, KvRefused, KvReleased
from common.kv.plan import KvShape
from common.messages import Ticket
from tests.rigs.messages import ticket
from tests.unit.common.kv.handoff.helpers import D0, SHAPE, ready

KEY = ("r", 0)


def by_form(canonical: Mapping[str, KvShape]) -> Callable[[Ticket], KvShape | None]:
    """The shapes of KV with these canonical forms, by `Ticket.element`."""
    return lambda ticket: canonical.get(ticket.element) if ticket.canonical else SHAPE


plain = by_form({})


@pytest.fixture
def table() -> TicketTable:
    return TicketTable(plain, buffer_bytes=400, lease_ms=1000, counters=HandoffCounters())


def computed(blocks: int) -> ForSender:
    return ForSender(KEY, Computed(blocks))


def layers(blocks: int, count: int) -> ForSender:
    return ForSender(KEY, LayersComputed(blocks, count))


def staged(transfer: int, index: int) -> ForSender:
    return ForSender(KEY, Staged(transfer, index))


def stages(actions: list[TicketAction]) -> list[int]:
    return [action.action.index for action in actions if isinstance(action.action, Stage)]


def voids(actions: list[TicketAction]) -> list[int]:
    return [action.action.slot for action in actions if isinstance(action.action, SendVoid)]


def sent(actions: list[TicketAction]) -> list[int]:
    return [action.action.index for action in actions if isinstance(action.action, SendData)]


def ends(actions: list[TicketAction]) -> list[str]:
    return [action.action.error for action in actions if isinstance(action.action, Ended)]


def refusals(actions: list[TicketAction]) -> list[str]:
    return [
        action.action.message.message
        for action in actions
        if isinstance(action.action, SendControl) and isinstance(action.action.message, KvRefused)
    ]


def offered(table: TicketTable, *, blocks: int = 10, granted: int = 3) -> list[TicketAction]:
    assert table.handle(Offer(ticket(), blocks), 0.0) == []
    return table.handle(FromPeer(D0, ready(granted=granted)), 0.0)


@pytest.mark.parametrize("early", [True, False])
def test_a_second_ticket_of_an_attempt_is_refused_at_once(table: TicketTable, early: bool) -> None:
    other = msgspec.structs.replace(ready(transfer=8, granted=2), secret=b"other".ljust(16, b"#"))
    actions = [] if not early else table.handle(FromPeer(D0, other), 0.0)
    actions += table.handle(Offer(ticket(), 10), 0.0)
    actions += [] if early else table.handle(FromPeer(D0, other), 0.0)
    assert refusals(actions) == [OTHER_TICKET]
    assert voids(actions) == [0, 1]
    table.handle(FromPeer(D0, ready()), 0.0)
    assert stages(table.handle(computed(10), 0.0)) == [0], "the first ticket is served"
    table.check_invariants()


def test_a_message_is_staged_when_both_granted_and_computed(table: TicketTable) -> None:
    assert offered(table, granted=1) == []
    assert stages(table.handle(computed(3), 0.0)) == []
    assert stages(table.handle(computed(4), 0.0)) == [0]
    assert stages(table.handle(computed(10), 0.0)) == []
    assert stages(table.handle(FromPeer(D0, KvCredit(transfer=7, granted=3)), 0.0)) == [1, 2]
    assert sent(table.handle(staged(7, 0), 0.0)) == [0]
    assert sent(table.handle(staged(7, 0), 0.0)) == []
    table.check_invariants()


def test_released_ends_it_and_leaves_nothing(table: TicketTable) -> None:
    offered(table)
    table.handle(computed(10), 0.0)
    for index in range(3):
        assert sent(table.handle(staged(7, index), 0.0)) == [index]
    assert ends(table.handle(FromPeer(D0, KvReleased(transfer=7)), 0.0)) == [""]
    assert len(table) == 0
    assert table.holds() == []
    assert table.handle(FromPeer(D0, KvReleased(transfer=7)), 0.0) == []
    assert table.handle(Tick(), 99.0) == []


@pytest.mark.parametrize("sent_before", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["daemon", "d", "expiry"])
def test_every_interrupted_prefix_voids_exactly_the_unanswered(
    table: TicketTable, sent_before: int, how: str
) -> None:
    offered(table)
    table.handle(computed(10), 0.0)
    for index in range(sent_before):
        table.handle(staged(7, index), 0.0)
    if how == "daemon":
        actions = table.handle(Release(KEY, "client gone"), 0.0)
    elif how == "d":
        actions = table.handle(FromPeer(D0, KvAbort(transfer=7, reason="deadline")), 0.0)
    else:
        assert table.handle(Tick(), 0.999) == []
        actions = table.handle(Tick(), 1.0)
    assert voids(actions) == list(range(sent_before, 3))
    assert len(ends(actions)) == 1
    assert bool(refusals(actions)) == (how != "d")
    assert len(table) == 0
    table.check_invariants()
    assert table.handle(staged(7, sent_before), 0.0) == []
    assert table.handle(computed(10), 0.0) == []
    assert table.handle(Release(KEY, "again"), 0.0) == []


def test_a_credit_that_crossed_the_end_is_still_answered_with_voids(table: TicketTable) -> None:
    offered(table, granted=1)
    table.handle(Release(KEY, "gone"), 0.0)
    assert voids(table.handle(FromPeer(D0, KvCredit(transfer=7, granted=3)), 0.0)) == [1, 2]
    assert voids(table.handle(FromPeer(D0, KvCredit(transfer=7, granted=3)), 0.0)) == []


def test_ready_before_its_ticket_waits_and_is_served(table: TicketTable) -> None:
    assert table.handle(FromPeer(D0, ready(granted=1)), 0.0) == []
    assert table.handle(FromPeer(D0, KvCredit(transfer=7, granted=2)), 0.0) == []
    assert table.handle(Offer(ticket(), 10), 0.5) == []
    assert stages(table.handle(computed(10), 0.0)) == [0, 1]


def test_an_early_ready_waits_as_long_as_d_does(table: TicketTable) -> None:
    """P's queue may be longer than a lease, which only runs from the offer."""
    early = msgspec.structs.replace(ready(granted=1), patience_ms=5000.0)
    table.handle(FromPeer(D0, early), 0.0)
    assert table.handle(Tick(), 4.9) == []
    assert refusals(table.handle(Tick(), 5.0)) == ["no such ticket came"]


def test_a_repeated_early_ready_is_answered_once(table: TicketTable) -> None:
    assert table.handle(FromPeer(D0, ready(granted=2)), 0.0) == []
    assert table.handle(FromPeer(D0, ready(granted=2)), 0.1) == []
    actions = table.handle(Release(KEY, "client gone"), 0.0)
    assert voids(actions) == [0, 1]
    assert table.handle(FromPeer(D0, ready(granted=2)), 0.2) == []


def test_a_newer_early_ready_takes_the_place_of_an_older(table: TicketTable) -> None:
    table.handle(FromPeer(D0, ready(granted=2)), 0.0)
    assert voids(table.handle(FromPeer(D0, ready(transfer=8, granted=1)), 0.1)) == [0, 1]
    assert table.handle(Offer(ticket(), 10), 0.2) == []
    assert stages(table.handle(computed(10), 0.0)) == [0]
    assert table.sender(KEY).transfer == 8  # type: ignore[union-attr]


def test_an_early_ready_expires_with_voids_and_a_refusal(table: TicketTable) -> None:
    table.handle(FromPeer(D0, ready(granted=1)), 0.0)
    table.handle(FromPeer(D0, KvCredit(transfer=7, granted=2)), 0.0)
    actions = table.handle(Tick(), 1.0)
    assert voids(actions) == [0, 1]
    assert refusals(actions)
    assert len(table) == 0


def test_an_early_ready_can_be_aborted_and_its_offer_is_then_refused(table: TicketTable) -> None:
    table.handle(FromPeer(D0, ready(granted=2)), 0.0)
    assert voids(table.handle(FromPeer(D0, KvAbort(transfer=7, reason="x")), 0.0)) == [0, 1]
    assert ends(table.handle(Offer(ticket(), 10), 0.1)) == [Code.CANCELLED]


def test_a_release_before_the_offer_refuses_the_offer(table: TicketTable) -> None:
    assert table.handle(Release(KEY, "client gone"), 0.0) == []
    assert ends(table.handle(Offer(ticket(), 10), 0.0)) == [Code.CANCELLED]
    actions = table.handle(FromPeer(D0, ready()), 0.0)
    assert refusals(actions)
    assert voids(actions) == [0]


def test_a_release_refuses_what_waits_for_the_offer(table: TicketTable) -> None:
    table.handle(FromPeer(D0, ready(granted=2)), 0.0)
    actions = table.handle(Release(KEY, "client gone"), 0.0)
    assert refusals(actions) == ["client gone"]
    assert voids(actions) == [0, 1]
    assert len(table) == 0


def test_a_ticket_serves_only_the_worker_and_incarnation_it_names(table: TicketTable) -> None:
    table.handle(Offer(ticket(), 10), 0.0)
    for stranger in (ConnectedPeer(2, "d1", "inc-d0"), ConnectedPeer(3, "d0", "older")):
        actions = table.handle(FromPeer(stranger, ready(transfer=stranger.id)), 0.0)
        assert refusals(actions)
        assert voids(actions) == [0]
    assert stages(table.handle(FromPeer(D0, ready()), 0.0) + table.handle(computed(10), 0.0)) == [0]


def test_a_worker_of_another_layout_is_served_by_canonical_tickets_only() -> None:
    """Their messages are of the canonical shape: here 12 blocks fit into a buffer, not 10."""
    half = replace(SHAPE, block_bytes=SHAPE.block_bytes // 2)
    unlike = replace(D0, alike=False)
    for canonical in (True, False):
        table = TicketTable(by_form({"": half}), 12 * half.block_bytes, 1000, HandoffCounters())
        table.handle(Offer(ticket(canonical=canonical), 20), 0.0)
        asked = ready(blocks=12, message_blocks=12 if canonical else 1)
        actions = table.handle(FromPeer(unlike, asked), 0.0) + table.handle(computed(20), 0.0)
        assert stages(actions) == ([0] if canonical else [])
        assert refusals(actions) == ([] if canonical else ["the ticket is for KV of one layout"])
        assert table.block_bytes(KEY) == (half if canonical else SHAPE).block_bytes


def test_a_canonical_ticket_ends_at_once_where_kv_has_no_such_form(table: TicketTable) -> None:
    actions = table.handle(Offer(ticket(canonical=True), 10), 0.0)
    assert ends(actions) == [Code.KV_TRANSFER_FAILED]
    assert len(table) == 0


def test_a_worker_of_another_element_type_is_served_by_tickets_that_name_one() -> None:
    """Blocks are then of that type; 12 halves of a block fit into a buffer, not 10 whole ones."""
    half = replace(SHAPE, block_bytes=SHAPE.block_bytes // 2)
    forms = {"": SHAPE, "bfloat16": half}
    other = replace(D0, alike=False, means_same=False)
    for element, stage in (("bfloat16", [0]), ("", []), ("float16", [])):
        table = TicketTable(by_form(forms), 12 * half.block_bytes, 1000, HandoffCounters())
        actions = table.handle(Offer(ticket(canonical=True, element=element), 20), 0.0)
        assert ends(actions) == ([Code.KV_TRANSFER_FAILED] if element == "float16" else [])
        asked = ready(blocks=12, message_blocks=12 if element else 1)
        actions = table.handle(FromPeer(other, asked), 0.0) + table.handle(computed(20), 0.0)
        assert stages(actions) == stage


def test_a_retry_replaces_the_transfer_and_voids_the_older(table: TicketTable) -> None:
    offered(table)
    table.handle(computed(10), 0.0)
    table.handle(staged(7, 0), 0.0)
    actions = table.handle(FromPeer(D0, ready(transfer=8, first_block=4, blocks=6, granted=2)), 0.1)
    assert voids(actions) == [1, 2]
    assert stages(actions) == [0, 1]
    assert table.handle(staged(7, 1), 0.0) == []
    assert table.handle(FromPeer(D0, KvReleased(transfer=7)), 0.0) == []
    assert ends(table.handle(FromPeer(D0, KvReleased(transfer=8)), 0.0)) == [""]


def test_a_repeated_ready_changes_nothing(table: TicketTable) -> None:
    offered(table)
    assert stages(table.handle(computed(10), 0.0)) == [0, 1, 2]
    assert table.handle(FromPeer(D0, ready(granted=3)), 0.1) == []


def test_losing_d_keeps_the_lease_for_a_grace_in_which_d_may_return(table: TicketTable) -> None:
    offered(table)
    table.handle(computed(10), 0.0)
    assert table.handle(PeerLost(D0.id), 0.0) == []
    again = ConnectedPeer(9, D0.name, D0.incarnation)
    assert stages(table.handle(FromPeer(again, ready(transfer=8, granted=1)), 0.5)) == [0]


def test_a_d_that_returns_has_the_whole_lease_again_however_long_its_transfer_takes() -> None:
    table = TicketTable(plain, buffer_bytes=400, lease_ms=60_000, counters=HandoffCounters())
    table.handle(Offer(ticket(lease_ms=60_000), 10), 0.0)
    table.handle(FromPeer(D0, ready()), 0.0)
    for transfer, now in ((8, 1.0), (9, 2.0)):
        table.handle(PeerLost(D0.id), now)
        assert [lease.expires for _, lease in table.holds()] == [now + GRACE_S]
        table.handle(FromPeer(D0, ready(transfer=transfer)), now + GRACE_S / 2)
        assert [lease.expires for _, lease in table.holds()] == [60.0], "and not more than that"


def test_losing_d_for_good_frees_before_the_lease_would_have() -> None:
    table = TicketTable(plain, buffer_bytes=400, lease_ms=60_000, counters=HandoffCounters())
    table.handle(Offer(ticket(lease_ms=60_000), 10), 0.0)
    table.handle(FromPeer(D0, ready()), 0.0)
    table.handle(PeerLost(D0.id), 1.0)
    assert ends(table.handle(Tick(), 1.0 + GRACE_S)) == [Code.KV_TRANSFER_FAILED]


def test_a_d_that_is_lost_before_the_ticket_comes_is_not_served(table: TicketTable) -> None:
    table.handle(FromPeer(D0, ready(granted=3)), 0.0)
    table.handle(FromPeer(ConnectedPeer(2, "d1", "inc-d1"), ready(8, request_id="other")), 0.0)
    table.handle(PeerLost(D0.id), 0.1)
    assert len(table) == 1, "the other one waits on"
    table.handle(Offer(ticket(), 10), 0.2)
    assert stages(table.handle(computed(10), 0.3)) == []


def test_what_is_handed_over_under_a_new_ticket_has_that_lease_alone(table: TicketTable) -> None:
    table.handle(Offer(ticket(decode=""), 10), 0.0)
    table.handle(HandOver(KEY, ticket("next"), 10), 0.5)
    assert [(key, lease.owner) for key, lease in table.holds()] == [(("next", 0), "d0")]
    assert table.has_ended(KEY)
    table.check_invariants()
    assert table.handle(HandOver(KEY, ticket("again"), 10), 0.6) == [], "it is not there twice"


def test_what_is_kept_is_handed_over_in_smaller_blocks_too() -> None:
    table = TicketTable(by_form({"": SHAPE}), 1 << 20, 1000, HandoffCounters())
    table.handle(Offer(ticket(decode=""), 3), 0.0)
    table.handle(HandOver(KEY, ticket("next", canonical=True), 12), 0.5)
    assert [lease.blocks for _, lease in table.holds()] == [12]


def test_losing_one_d_leaves_the_leases_of_others_alone(table: TicketTable) -> None:
    """Of a D that is being served, of one that has been, and of one that has not asked yet."""
    d1 = ConnectedPeer(2, "d1", "inc-d1")
    for name in ("served", "dropped", "unasked"):
        other = ticket(name, decode="d1", decode_incarnation="inc-d1")
        table.handle(Offer(other, 10), 0.0)
    table.handle(FromPeer(d1, ready(1, request_id="served")), 0.0)
    table.handle(FromPeer(d1, ready(2, request_id="dropped")), 0.0)
    table.handle(FromPeer(d1, KvAbort(2, "again")), 0.0)
    offered(table)
    before = {key: lease.expires for key, lease in table.holds()}
    table.handle(PeerLost(D0.id), -GRACE_S)
    after = {key: lease.expires for key, lease in table.holds()}
    assert {key for key in before if after[key] != before[key]} == {KEY}
    assert after[KEY] == 0.0


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
def test_what_no_correct_peer_asks_is_refused(table: TicketTable, bad: KvReady) -> None:
    table.handle(Offer(ticket(), 10), 0.0)
    actions = table.handle(FromPeer(D0, bad), 0.0)
    assert refusals(actions)
    assert voids(actions) == [0]
    table.check_invariants()


def test_preemption_takes_blocks_back_and_sends_again_only_what_was_not_sent(
    table: TicketTable,
) -> None:
    offered(table)
    assert stages(table.handle(computed(8), 0.0)) == [0, 1]
    table.handle(staged(7, 0), 0.0)
    assert table.handle(computed(0), 0.0) == []
    assert table.handle(staged(7, 1), 0.0) == []
    actions = table.handle(computed(10), 0.0)
    assert stages(actions) == [1, 2]
    assert sent(table.handle(staged(7, 1), 0.0)) == [1]


def test_layers_leave_while_later_ones_are_computed(table: TicketTable) -> None:
    """Two groups of one layer: index 2r is the first layer of run r, 2r + 1 the second."""
    table.handle(Offer(ticket(), 10), 0.0)
    table.handle(FromPeer(D0, ready(granted=6, layer_groups=2)), 0.0)
    assert stages(table.handle(layers(8, 1), 0.0)) == [0, 2]
    assert sent(table.handle(staged(7, 2), 0.0)) == [2]
    assert stages(table.handle(layers(8, 1), 0.0)) == []
    assert stages(table.handle(computed(8), 0.0)) == [1, 3]
    assert stages(table.handle(layers(10, 1), 0.0)) == [4]
    assert stages(table.handle(computed(10), 0.0)) == [5]
    table.check_invariants()


def test_computed_layers_do_not_count_when_the_step_was_not_finished(table: TicketTable) -> None:
    """Preemption: layers reported and not copied yet are not read."""
    table.handle(Offer(ticket(), 10), 0.0)
    table.handle(FromPeer(D0, ready(granted=6, layer_groups=2)), 0.0)
    assert stages(table.handle(layers(8, 1), 0.0)) == [0, 2]
    assert stages(table.handle(computed(0), 0.0)) == []
    assert sent(table.handle(staged(7, 0), 0.0)) == []
    table.check_invariants()
    assert stages(table.handle(computed(4), 0.0)) == [0, 1]


def test_slots_are_used_in_order_whatever_message_goes_into_them(table: TicketTable) -> None:
    table.handle(Offer(ticket(), 10), 0.0)
    table.handle(FromPeer(D0, ready(granted=2, layer_groups=2)), 0.0)
    assert stages(table.handle(layers(10, 1), 0.0)) == [0, 2], "no more than there are slots"
    slots = [
        (action.action.index, action.action.slot)
        for index in (2, 0)
        for action in table.handle(staged(7, index), 0.0)
        if isinstance(action.action, SendData)
    ]
    assert slots == [(2, 0), (0, 1)]
    assert stages(table.handle(FromPeer(D0, KvCredit(transfer=7, granted=4)), 0.0)) == [4]


def test_a_request_for_no_blocks_releases_at_once(table: TicketTable) -> None:
    table.handle(Offer(ticket(), 10), 0.0)
    assert ends(table.handle(FromPeer(D0, ready(blocks=0, granted=0)), 0.0)) == [""]
    assert len(table) == 0


def test_early_requests_are_bounded(table: TicketTable) -> None:
    for at in range(EARLY_READY_MAX):
        assert table.handle(FromPeer(D0, ready(at, request_id=f"q{at}")), 0.0) == []
    actions = table.handle(FromPeer(D0, ready(9999, request_id="late")), 0.0)
    assert refusals(actions)
    assert len(table) == EARLY_READY_MAX


def test_a_repeated_offer_changes_nothing(table: TicketTable) -> None:
    offered(table)
    assert table.handle(Offer(ticket(), 10), 0.1) == []
    assert stages(table.handle(computed(4), 0.0)) == [0]
