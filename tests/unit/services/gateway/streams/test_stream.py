"""From deltas to an answer: any cut of the same tokens gives the same text, usage and ending."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import BatonError, Code
from common.messages import Delta, Sampling
from common.model.byte_tokenizer import EOS_ID, build_tokenizer
from services.gateway.streams.answer import Collected, Ending, PushOutcome, Usage
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream
from services.gateway.text.detokenizer import ByteLevelDetokenizer, byte_level_pieces

PIECES = byte_level_pieces(build_tokenizer())
PROMPT = [1, 2, 3]


def made(answer: Collected, stops: tuple[str, ...] = (), **more: Any) -> TextStream:
    sampling = Sampling(max_tokens=1000, **more.pop("sampling", {}))
    detokenizer = ByteLevelDetokenizer(PIECES)
    return TextStream(Journal(PROMPT, 1000), sampling, detokenizer, answer, stops=stops, **more)


def feed(
    stream: TextStream, ids: list[int], cuts: list[int], reason: str = "length"
) -> PushOutcome:
    bounds = sorted({0, *(min(cut, len(ids)) for cut in cuts), len(ids)})
    runs = [ids[a:b] for a, b in itertools.pairwise(bounds)] or [[]]
    index = 0
    for nth, run in enumerate(runs, start=1):
        last = reason if nth == len(runs) else ""
        verdict = stream.push(Delta("r", 1, index, run, finish_reason=last))
        if verdict is not PushOutcome.RUNNING:
            return verdict
        index += len(run)
    return PushOutcome.RUNNING


@given(st.text("aé€😀\x00\n", max_size=20), st.lists(st.integers(0, 80), max_size=12))
def test_any_cut_gives_the_text(text: str, cuts: list[int]) -> None:
    answer = Collected()
    ids = list(text.encode())
    assert feed(made(answer), ids, cuts) is PushOutcome.FINISHED
    assert answer.joined_text == text
    assert answer.token_ids == ids
    assert answer.ending == Ending("length", None, Usage(3, len(ids), 0))


@given(
    st.text("abé😀", max_size=20),
    st.lists(st.integers(0, 80), max_size=12),
    st.integers(0, 8),
    st.booleans(),
)
def test_any_cut_meets_the_same_stop(
    text: str, cuts: list[int], min_tokens: int, include: bool
) -> None:
    stops = ("ab", "é", "b😀")
    sampling = {"min_tokens": min_tokens}
    answers = Collected(), Collected()
    ids = list(text.encode())
    feed(made(answers[0], stops, include_stop=include, sampling=sampling), ids, cuts)
    feed(made(answers[1], stops, include_stop=include, sampling=sampling), ids, list(range(99)))
    assert answers[0].joined_text == answers[1].joined_text
    assert answers[0].ending == answers[1].ending
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].ending is not None
    assert len(answers[0].token_ids) == answers[0].ending.usage.completion
    if answers[0].ending.stop_reason is not None:
        assert answers[0].ending.usage.completion > min_tokens


@pytest.mark.parametrize("stops", [(), ("zz",)])
def test_a_character_that_never_became_whole_ends_the_text(stops: tuple[str, ...]) -> None:
    answer = Collected()
    feed(made(answer, stops), [97, 0xE2, 0x82], [1, 2])
    assert answer.joined_text == "a\ufffd"


def test_tokens_after_the_stop_string_are_not_counted() -> None:
    answer = Collected()
    stream = made(answer, ("STOP",))
    assert stream.push(Delta("r", 1, 0, list(b"xSTOPyz"))) is PushOutcome.STOPPED
    assert answer.joined_text == "x"
    assert answer.ending == Ending("stop", "STOP", Usage(3, 5, 0))


@pytest.mark.parametrize(("include", "text"), [(False, "ok"), (True, "ok!")])
def test_a_stop_token_is_counted_and_shown_only_when_asked(include: bool, text: str) -> None:
    answer = Collected()
    stream = made(answer, include_stop=include, sampling={"stop_token_ids": (33,)})
    stream.push(Delta("r", 1, 0, [*b"ok!"], finish_reason="stop", stop_token=33))
    assert answer.joined_text == text
    assert answer.ending == Ending("stop", 33, Usage(3, 3, 0))


def test_the_models_own_end_has_no_stop_reason() -> None:
    answer = Collected()
    made(answer).push(Delta("r", 1, 0, [EOS_ID], finish_reason="stop", stop_token=EOS_ID))
    assert answer.ending == Ending("stop", None, Usage(3, 1, 0))


def test_an_error_from_the_worker_is_kept_and_not_told() -> None:
    answer = Collected()
    stream = made(answer)
    assert (
        stream.push(Delta("r", 1, 0, [], error="no_capacity", message="full")) is PushOutcome.ERROR
    )
    assert isinstance(stream.error, BatonError)
    assert stream.error.code is Code.NO_CAPACITY
    assert answer.error is None


def test_stale_gap_and_surplus() -> None:
    stream = made(Collected())
    assert stream.push(Delta("r", 2, 0, [65])) is PushOutcome.DROPPED
    assert stream.push(Delta("r", 1, 0, [65])) is PushOutcome.RUNNING
    assert stream.push(Delta("r", 1, 0, [65])) is PushOutcome.DROPPED
    assert stream.push(Delta("r", 1, 2, [65])) is PushOutcome.BROKEN
    assert made(Collected()).push(Delta("r", 1, 0, [65] * 1001)) is PushOutcome.BROKEN


def test_usage_counts_as_cached_what_was_computed_before_the_request() -> None:
    stream = made(Collected())
    stream.push(Delta("r", 1, 0, [65], cached_tokens=9, handed_over_tokens=7, stored_tokens=8))
    assert stream.usage == Usage(3, 1, 2, 6)
    stream.journal.next_attempt()
    stream.push(Delta("r", 2, 0, [66], cached_tokens=3))
    assert stream.usage == Usage(3, 2, 2, 6), "the attempt that goes on computes nothing new"
