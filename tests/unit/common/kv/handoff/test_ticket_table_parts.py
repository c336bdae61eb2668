"""The parts of a ticket are handoffs of one attempt: what ends or releases it is known of all."""

from __future__ import annotations

import msgspec
import pytest

from common.errors import Code
from common.identity import part_key
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.parts import WHOLE, tickets_of
from common.kv.handoff.protocol import FromPeer, Offer, Release
from common.kv.handoff.ticket_table import OTHER_TICKET, TicketTable
from common.kv.messages import KvAbort, KvReady
from common.messages import Ticket
from tests.rigs.messages import ticket
from tests.unit.common.kv.handoff.helpers import D0, SHAPE, ready
from tests.unit.common.kv.handoff.test_ticket_table import ends, refusals

KEY = ("r", 0)
PARTS = tickets_of(ticket(canonical=True, parts=2), WHOLE)


@pytest.fixture
def table() -> TicketTable:
    return TicketTable(lambda _: SHAPE, buffer_bytes=400, lease_ms=1000, counters=HandoffCounters())


def asks(part: Ticket, transfer: int = 7) -> KvReady:
    """What D says for this part."""
    named = ready(transfer, request_id=part.request_id)
    return msgspec.structs.replace(named, secret=part.secret)


def test_after_the_end_no_part_is_served_or_offered_again(table: TicketTable) -> None:
    for part in PARTS:
        table.handle(Offer(part, 10), 0.0)
        table.handle(Release(part_key(KEY, PARTS.index(part)), "over"), 0.0)
    assert len(table) == 0
    assert table.has_ended(KEY)
    for number, part in enumerate(PARTS):
        asked = table.handle(FromPeer(D0, asks(part, 20 + number)), 0.1)
        assert refusals(asked) == ["the ticket has ended"]
        assert ends(table.handle(Offer(part, 10), 0.1)) == [Code.CANCELLED]


def test_one_part_that_ends_leaves_the_other(table: TicketTable) -> None:
    for part in PARTS:
        table.handle(Offer(part, 10), 0.0)
    table.handle(Release(part_key(KEY, 0), "over"), 0.0)
    assert refusals(table.handle(FromPeer(D0, asks(PARTS[1])), 0.1)) == []
    assert len(table) == 1
    table.check_invariants()


def test_a_release_refuses_the_parts_that_wait_for_their_offer(table: TicketTable) -> None:
    for number, part in enumerate(PARTS):
        table.handle(FromPeer(D0, asks(part, 20 + number)), 0.0)
    assert refusals(table.handle(Release(KEY, "aborted"), 0.1)) == ["aborted", "aborted"]
    assert [ends(table.handle(Offer(part, 10), 0.2)) for part in PARTS] == [[Code.CANCELLED]] * 2


def test_an_abort_of_a_part_that_waits_is_one_of_the_attempt(table: TicketTable) -> None:
    table.handle(FromPeer(D0, asks(PARTS[0])), 0.0)
    table.handle(FromPeer(D0, KvAbort(transfer=7, reason="no")), 0.1)
    assert [ends(table.handle(Offer(part, 10), 0.2)) for part in PARTS] == [[Code.CANCELLED]] * 2


def test_an_offer_of_one_part_leaves_those_of_the_others_waiting(table: TicketTable) -> None:
    table.handle(FromPeer(D0, asks(PARTS[1])), 0.0)
    assert table.handle(Offer(PARTS[0], 10), 0.1) == []
    assert refusals(table.handle(Offer(PARTS[1], 10), 0.1)) == []
    assert len(table) == 2


def test_another_ticket_of_the_attempt_refuses_the_parts_of_the_first(table: TicketTable) -> None:
    table.handle(FromPeer(D0, asks(PARTS[1])), 0.0)
    assert refusals(table.handle(Offer(ticket(), 10), 0.1)) == [OTHER_TICKET]
