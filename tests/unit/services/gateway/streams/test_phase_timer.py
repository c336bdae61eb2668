"""Both accounts of a request's time have no gap and no overlap, in whatever order things happen."""

from __future__ import annotations

import itertools

import pytest

from services.gateway.api.response_bodies import timings_object
from services.gateway.streams.answer import Usage
from services.gateway.streams.phase_timer import DECODE, PLACED, QUEUE, SPANS_MAX, PhaseTimer


def timed(*, queue: float, prefill: float, decode: float) -> PhaseTimer:
    timer = PhaseTimer(100.0)
    timer.enter(QUEUE, 1, queue)
    timer.enter(PLACED, 1, prefill)
    timer.output_began(decode)
    return timer


def test_each_phase_ends_where_the_next_begins() -> None:
    timer = timed(queue=100.001, prefill=100.003, decode=100.007)
    found = timer.client_phases(100.015)
    assert found == pytest.approx({"intake": 1, "queue": 2, "prefill": 4, "decode": 8})


def test_what_has_not_begun_has_no_time() -> None:
    timer = PhaseTimer(100.0)
    assert timer.client_phases(100.5) == {"intake": pytest.approx(500)}
    timer.enter(QUEUE, 1, 100.5)
    assert timer.client_phases(101.0) == pytest.approx({"intake": 500, "queue": 500})


def test_the_first_of_several_generations_counts_for_the_client() -> None:
    first = PhaseTimer(100.0)
    for timer, later in ((first, 0.0), (first.sibling(), 0.1)):
        timer.enter(QUEUE, 1, 101.0 + later)
        timer.enter(PLACED, 1, 102.0 + later)
        timer.output_began(103.0 + later)
    assert list(first.client_phases(104.0).values()) == pytest.approx([1000] * 4)


def test_each_of_several_generations_has_spans_of_its_own() -> None:
    first = PhaseTimer(100.0)
    second = first.sibling()
    first.enter(QUEUE, 1, 101.0)
    second.enter(QUEUE, 1, 103.0)
    assert [span.ms for span in first.spans(104.0)] == [1000.0, 3000.0]
    assert [span.ms for span in second.spans(104.0)] == [3000.0, 1000.0]


@pytest.mark.parametrize("order", list(itertools.permutations(["queue", "prefill", "decode"])))
def test_phases_sum_to_the_whole_in_any_order(order: tuple[str, ...]) -> None:
    """The queue is first in truth; tokens and the name of their worker may change places."""
    timer, now = PhaseTimer(100.0), 100.0
    for phase in order:
        now += 1.0
        if phase == "decode":
            timer.output_began(now)
        else:
            timer.enter(QUEUE if phase == "queue" else PLACED, 1, now)
    assert sum(timer.client_phases(now + 1.0).values()) == pytest.approx(4000)


def test_tokens_that_overtake_their_placement_had_no_prefill() -> None:
    timer = PhaseTimer(100.0)
    timer.enter(QUEUE, 1, 101.0)
    timer.output_began(102.0)
    timer.enter(PLACED, 1, 102.5)
    assert timer.client_phases(103.0) == pytest.approx(
        {"intake": 1000, "queue": 1000, "prefill": 0, "decode": 1000}
    )


def test_a_stream_that_breaks_off_was_decoding_until_its_last_token() -> None:
    timer = PhaseTimer(0.0)
    timer.enter(DECODE, 1, 1.0)
    timer.token(1.0)
    timer.token(3.0)
    timer.enter(QUEUE, 2, 5.0)
    spans = [(span.name, span.attempt, span.ms) for span in timer.spans(6.0)]
    assert spans == [("intake", 1, 1000.0), ("decode", 1, 2000.0), ("queue", 2, 3000.0)]
    assert (timer.first_token, timer.gap_max) == (1.0, 2.0)


def test_spans_are_bounded_and_still_sum_to_the_whole() -> None:
    timer, now = PhaseTimer(0.0), 0.0
    for step in range(3 * SPANS_MAX):
        now += 1.0
        timer.enter("held" if step % 2 else "queue", 1, now)
    spans = timer.spans(now)
    assert len(spans) == SPANS_MAX
    assert sum(span.ms for span in spans) == pytest.approx(now * 1000)


def test_the_timings_of_an_answer() -> None:
    timer = timed(queue=100.001, prefill=100.003, decode=100.103)
    assert timings_object(timer, Usage(prompt=300, completion=51, cached=100), 100.603) == {
        "intake_ms": 1.0,
        "queue_ms": 2.0,
        "prompt_ms": 100.0,
        "predicted_ms": 500.0,
        "total_ms": 603.0,
        "prompt_n": 200,
        "cache_n": 100,
        "predicted_n": 51,
        "prompt_per_second": 2000.0,
        "predicted_per_second": 100.0,
    }


def test_an_answer_without_tokens_has_no_rates() -> None:
    times = timings_object(PhaseTimer(0.0), Usage(0, 0, 0), 0.0)
    assert not any(times.values())
