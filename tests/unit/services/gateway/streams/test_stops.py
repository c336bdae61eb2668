"""The stop scanner against the plain definition, over any cut of any text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.streams.stops import StopScanner

ALPHABET = "ab\né€😀"
TEXTS = st.text(ALPHABET, max_size=40)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=6), min_size=1, max_size=4).map(tuple)


def expected(text: str, stops: tuple[str, ...], *, include: bool) -> tuple[str, str | None]:
    """Character by character: the first to be complete, the longest of those."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 40), max_size=10), st.booleans())
def test_any_cut_gives_the_plain_answer(
    text: str, stops: tuple[str, ...], places: list[int], include: bool
) -> None:
    scanner = StopScanner(stops, include=include)
    out, met = "", None
    for piece in cut(text, places):
        safe, met = scanner.feed(piece)
        out += safe
        if met is not None:
            break
    if met is None:
        out += scanner.flush()
    assert (out, met) == expected(text, stops, include=include)


@given(TEXTS, STOPS, st.lists(st.integers(0, 40), max_size=10))
def test_holds_back_only_what_may_still_become_a_stop(
    text: str, stops: tuple[str, ...], places: list[int]
) -> None:
    scanner = StopScanner(stops)
    fed = out = ""
    for piece in cut(text, places):
        safe, met = scanner.feed(piece)
        if met is not None:
            return
        fed, out = fed + piece, out + safe
        held = fed[len(out) :]
        assert fed.startswith(out)
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@given(TEXTS, STOPS, st.lists(st.integers(0, 40), max_size=5))
def test_unarmed_lets_everything_pass(text: str, stops: tuple[str, ...], places: list[int]) -> None:
    scanner = StopScanner(stops)
    out = ""
    for piece in cut(text, places):
        safe, met = scanner.feed(piece, armed=False)
        assert met is None
        out += safe
    assert out + scanner.flush() == text


def test_a_partial_stop_seen_unarmed_may_be_completed_when_armed() -> None:
    scanner = StopScanner(("STOP",))
    assert scanner.feed("a ST", armed=False) == ("a ", None)
    assert scanner.feed("OP b") == ("", "STOP")


@pytest.mark.parametrize("stops", [(), ("",), ("a", "")])
def test_empty_stop_strings_are_a_defect(stops: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="stop strings"):
        StopScanner(stops)
