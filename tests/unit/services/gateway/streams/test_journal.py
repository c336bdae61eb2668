"""Token identity: whatever comes, late, twice or out of order, the emitted ids are the sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BatonError, Code
from services.gateway.streams.journal import DeltaOrder, Journal

SIZE = 12


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, SIZE), st.integers(1, 4))))
def test_only_the_next_index_of_the_current_attempt_is_taken(
    messages: list[tuple[int, int, int]],
) -> None:
    journal = Journal([1, 2], max_tokens=SIZE * 2)
    for attempt, index, size in messages:
        before = list(journal.emitted)
        ids = [1000 + index + nth for nth in range(size)]
        seen = journal.accept(attempt, index, ids)
        if attempt != 1 or index < len(before):
            assert seen is DeltaOrder.STALE
        elif index > len(before):
            assert seen is DeltaOrder.GAP
        else:
            assert seen is DeltaOrder.NEXT
            assert journal.emitted == [*before, *ids]
            continue
        assert journal.emitted == before
    assert journal.emitted == [1000 + nth for nth in range(len(journal.emitted))]


def test_a_new_attempt_counts_from_its_own_start() -> None:
    journal = Journal([1], max_tokens=10)
    assert journal.accept(1, 0, [7, 8]) is DeltaOrder.NEXT
    assert journal.next_attempt() == 2
    assert journal.accept(1, 2, [9]) is DeltaOrder.STALE
    assert journal.accept(2, 1, [9]) is DeltaOrder.GAP
    assert journal.accept(2, 0, [9]) is DeltaOrder.NEXT
    assert journal.emitted == [7, 8, 9]


def test_more_tokens_than_asked_for_is_the_engines_fault() -> None:
    journal = Journal([1], max_tokens=2)
    with pytest.raises(BatonError) as refused:
        journal.accept(1, 0, [1, 2, 3])
    assert refused.value.code is Code.ENGINE_FAILED
    assert journal.emitted == []


def test_forget_after() -> None:
    journal = Journal([1], max_tokens=5)
    journal.accept(1, 0, [1, 2, 3])
    journal.truncate(1)
    assert journal.emitted == [1]
