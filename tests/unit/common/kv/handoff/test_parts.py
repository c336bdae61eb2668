"""Handoffs in parts: which part is on which rank, and one end of all of them."""

from __future__ import annotations

import pytest

from common.errors import Code
from common.kv.handoff.parts import WHOLE, PartEnds, Rank, key_of, share_of, tickets_of
from common.kv.handoff.protocol import Ended
from common.messages import KvReport, Ticket
from tests.rigs.messages import ticket

KEY = ("r", 0)
FAILED = Ended(Code.KV_TRANSFER_FAILED, "no")


def in_parts(parts: int, addresses: str) -> Ticket:
    return ticket(canonical=True, parts=parts, kv_address=addresses)


def test_a_ticket_in_one_part_is_itself() -> None:
    whole = ticket(kv_address="h:1,h:2")
    assert tickets_of(whole, Rank(1, 2)) == [whole]
    assert share_of(whole, Rank(1, 2)) == (0, 1)


@pytest.mark.parametrize(("ranks", "others"), [(1, 2), (2, 1), (2, 4), (4, 2), (2, 3), (3, 2)])
def test_each_part_is_on_one_rank_at_both_ends(ranks: int, others: int) -> None:
    """Heads are counted over all: both ends find the same heads in a part, at each other."""
    parts, heads = {(1, 2): 2, (2, 4): 4, (2, 3): 6}[min(ranks, others), max(ranks, others)], 12
    given = in_parts(parts, ",".join(f"h:{rank}" for rank in range(others)))
    ours: dict[bytes, tuple[range, str]] = {}
    for number in range(ranks):
        for part in tickets_of(given, Rank(number, ranks)):
            ours[part.secret] = heads_of(part, Rank(number, ranks), heads), part.kv_address
    theirs = {
        part.secret: (heads_of(part, Rank(number, others), heads), number)
        for number in range(others)
        for part in tickets_of(given, Rank(number, others))
    }
    assert len(ours) == parts
    assert ours.keys() == theirs.keys()
    for secret, (these, address) in ours.items():
        those, number = theirs[secret]
        assert these == those
        assert address == f"h:{number}"
    assert sorted(head for these, _ in ours.values() for head in these) == list(range(heads))


def heads_of(part: Ticket, rank: Rank, heads: int) -> range:
    """Of the whole model."""
    here = heads // rank.of
    which, parts = share_of(part, rank)
    first = rank.number * here + which * here // parts
    return range(first, first + here // parts)


def test_parts_have_keys_and_secrets_of_their_own() -> None:
    first, second = tickets_of(in_parts(2, "h:1"), WHOLE)
    assert key_of(first) != key_of(second)
    assert first.secret != second.secret
    assert (first.attempt, first.prefill) == (0, "p0")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (in_parts(3, "h:1"), "3 parts of KV for the 2 ranks"),
        (ticket(parts=2), "in the canonical form only"),
    ],
)
def test_what_no_router_says_is_refused(wrong: Ticket, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tickets_of(wrong, Rank(0, 2))


def test_ends_and_reports_of_parts_are_joined() -> None:
    ends, given = PartEnds(), in_parts(2, "h:1,h:2")
    first, second = tickets_of(given, WHOLE)
    ends.begin(given, [first, second])
    assert KEY in ends
    assert ends.keys(KEY) == [("r#part0", 0), ("r#part1", 0)]
    report = KvReport(blocks=4, messages=2, payload_bytes=10, transfer_ms=2.0, complete=True)
    assert ends.end(first, report, Ended()) is None
    again = KvReport(blocks=4, messages=3, payload_bytes=11, transfer_ms=5.0, complete=True)
    joined = KvReport(blocks=4, messages=5, payload_bytes=21, transfer_ms=5.0, complete=True)
    assert ends.end(second, again, Ended()) == (given, joined, Ended())
    assert KEY not in ends
    assert ends.keys(KEY) == [KEY]


@pytest.mark.parametrize("failed", [0, 1])
def test_the_whole_fails_with_a_part_for_the_first_reason(failed: int) -> None:
    ends, given = PartEnds(), in_parts(2, "h:1")
    parts = tickets_of(given, WHOLE)
    ends.begin(given, parts)
    assert not ends.failed(KEY)
    assert ends.end(parts[failed], KvReport(), FAILED) is None
    assert ends.failed(KEY)
    late = Ended(Code.CANCELLED, "another part failed")
    done = ends.end(parts[1 - failed], KvReport(complete=True), late)
    assert done == (given, KvReport(), FAILED)
    assert not ends.failed(KEY)


def test_what_is_not_in_parts_ends_as_it_is() -> None:
    ends, given = PartEnds(), ticket()
    ends.begin(given, [given])
    assert KEY not in ends
    assert ends.end(given, KvReport(blocks=1), FAILED) == (given, KvReport(blocks=1), FAILED)
