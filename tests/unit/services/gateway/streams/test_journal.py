"""Token identity: whatever comes, late, twice or out of order, the emitted ids are the sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BatonError, Code
from common.messages import Delta
from services.gateway.streams.answer import Usage, usage_of
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


def counted(*, cached: int, handed_over: int = 0, stored: int = 0, prefill: int = 0) -> Journal:
    journal = Journal([1] * 3_004, 10)
    journal.accept(1, 0, [5])
    first = Delta(
        "r", 1, 0, [5], cached_tokens=cached, handed_over_tokens=handed_over, stored_tokens=stored
    )
    journal.take_prompt_counts(first)
    if prefill:
        journal.take_prefill_count(prefill)
    return journal


@pytest.mark.parametrize(
    ("counts", "cached"),
    [
        ({"cached": 0}, 0),
        ({"cached": 2_944}, 2_944),
        ({"cached": 3_003, "handed_over": 3_003}, 0),
        ({"cached": 3_003, "handed_over": 3_003, "prefill": 2_944}, 2_944),
        ({"cached": 3_003, "handed_over": 59}, 2_944),
        ({"cached": 3_003, "handed_over": 2_875, "prefill": 2_944}, 2_944),
        ({"cached": 3_003, "handed_over": 59, "prefill": 128}, 2_944),
        ({"cached": 3_003, "handed_over": 3_003, "prefill": 1 << 40}, 3_004),
    ],
)
def test_handed_over_is_not_cached_save_what_p_had(counts: dict[str, int], cached: int) -> None:
    journal = counted(**counts)
    assert journal.cached_tokens == cached
    assert usage_of(journal) == Usage(3_004, 1, cached)


def test_the_count_of_p_may_come_before_the_first_token_and_after_it() -> None:
    early = Journal([1] * 300, 10)
    early.take_prefill_count(256)
    early.take_prompt_counts(Delta("r", 1, 0, [5], cached_tokens=299, handed_over_tokens=299))
    assert early.cached_tokens == 256


def test_an_attempt_that_goes_on_counts_nothing() -> None:
    journal = counted(cached=128)
    journal.next_attempt()
    journal.accept(2, 0, [6])
    journal.take_prompt_counts(Delta("r", 2, 0, [6], cached_tokens=2_944))
    journal.take_prefill_count(2_944)
    assert journal.cached_tokens == 128


def test_what_p_had_for_an_attempt_without_tokens_does_not_count_for_the_next() -> None:
    journal = Journal([1] * 300, 10)
    journal.take_prefill_count(256)
    journal.next_attempt()
    journal.take_prompt_counts(Delta("r", 2, 0, [5], stored_tokens=256))
    assert usage_of(journal) == Usage(300, 0, 0, 256)


def test_usage_sums_up_all_generations_of_a_request() -> None:
    one, other = counted(cached=128, stored=2_944), counted(cached=2_944, stored=2_944)
    assert usage_of(one, other) == Usage(6_008, 2, 3_072, 2_816)
