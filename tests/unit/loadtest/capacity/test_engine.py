"""Continuous batching step by step, against sums done by hand."""

from __future__ import annotations

import pytest

from loadtest.capacity.engine import Engine, Job
from loadtest.capacity.profile import Profile
from loadtest.capacity.virtual_time import VirtualTime
from loadtest.capacity.workload import Arrival

PROFILE = Profile(
    prefill_curve=((100, 10.0), (1_000, 100.0)),
    decode_curve=((1, 10.0), (5, 14.0)),
    chunk_tokens=1_000,
    join_ms=2.0,
)


class Bed:
    """An engine and when what it was asked for was done: milliseconds by name."""

    def __init__(self, profile: Profile = PROFILE) -> None:
        self.time = VirtualTime()
        self.engine = Engine(profile, self.time, self._done, self._done)
        self.done: list[tuple[str, float]] = []

    def prompt(self, name: str, at_ms: float, tokens: int) -> Job:
        job = Job((name, 1), Arrival(0.0, tokens, 1, 1), 0.0)
        self.time.at(at_ms / 1000, lambda: self.engine.prompt(job))
        return job

    def stream(self, name: str, at_ms: float, tokens: int) -> Job:
        job = Job((name, 1), Arrival(0.0, 1, tokens, tokens), 0.0)
        self.time.at(at_ms / 1000, lambda: self.engine.stream(job, tokens))
        return job

    def fetched(self, name: str, at_ms: float) -> None:
        job = Job((name, 1), Arrival(0.0, 1, 1, 1), 0.0)
        self.time.at(at_ms / 1000, lambda: self.engine.fetched(job))

    def _done(self, job: Job) -> None:
        self.done.append((job.key[0], round(self.time.now * 1000, 6)))

    def run(self) -> list[tuple[str, float]]:
        self.time.run(60.0)
        return self.done


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_who_comes_within_a_step_waits_for_its_end(bed: Bed) -> None:
    bed.stream("a", 0, 10)
    bed.stream("b", 14, 2)
    assert bed.run() == [("b", 20 + 2 * 11), ("a", 20 + 2 * 11 + 6 * 10)]


def test_who_comes_at_a_steps_end_waits_for_nobody(bed: Bed) -> None:
    bed.stream("a", 0, 4)
    bed.stream("b", 20, 1)
    assert bed.run() == [("b", 31), ("a", 41)]


def test_prompts_that_wait_together_share_a_step(bed: Bed) -> None:
    bed.prompt("first", 0, 100)
    bed.prompt("second", 1, 100)
    bed.prompt("third", 2, 200)
    assert bed.run() == [("first", 10), ("second", 40), ("third", 40)]


def test_a_step_takes_no_more_tokens_than_a_chunk(bed: Bed) -> None:
    """1,000 + 500 + 500: the second prompt's rest and the third share the second step."""
    bed.prompt("holds", 0, 100)
    bed.prompt("long", 1, 1_000)
    bed.prompt("rest", 2, 500)
    assert bed.run() == [("holds", 10), ("long", 110), ("rest", 160)]


def test_streams_wait_for_the_prompt_that_shares_their_step(bed: Bed) -> None:
    bed.stream("a", 0, 3)
    bed.prompt("p", 5, 100)
    assert bed.run() == [("p", 10 + 20), ("a", 10 + 20 + 10)]
    assert bed.engine.itl == {10.0: 2.0, 20.0: 1.0}


def test_the_first_token_of_fetched_kv_is_a_step_unless_nobody_is_there() -> None:
    alone, beside = Bed(), Bed()
    alone.fetched("f", 0)
    assert alone.run() == [("f", 2)]
    beside.stream("a", 0, 2)
    beside.fetched("f", 3)
    assert beside.run() == [("a", 21), ("f", 21)]


def test_a_stream_that_goes_on_is_somebody_beside_fetched_kv(bed: Bed) -> None:
    """As after a local prefill: its first token was made, and it joins anew."""
    bed.prompt("p", 0, 100)
    bed.stream("goes on", 10, 1)
    bed.fetched("f", 5)
    assert bed.run() == [("p", 10), ("f", 21), ("goes on", 21)]


def test_who_is_dropped_leaves_at_the_end_of_the_step(bed: Bed) -> None:
    bed.stream("a", 0, 4)
    gone = bed.stream("gone", 0, 9)

    def drop() -> None:
        gone.dropped = True
        bed.engine.dropped()

    bed.time.at(0.015, drop)
    assert bed.run() == [("a", 10 + 11 + 2 * 10)]


def test_a_thousand_tokens_cost_two_events_and_are_counted_while_they_run(bed: Bed) -> None:
    bed.stream("a", 0, 1_000)
    bed.time.at(5.005, bed.engine.settle)
    bed.time.run(6.0)
    assert bed.engine.busy == pytest.approx(5.0)
    assert bed.run() == [("a", 10_000)]
    assert bed.engine.busy == pytest.approx(10.0)
    assert bed.time.events == 3, "the stream's begin and end, and the look at it"
