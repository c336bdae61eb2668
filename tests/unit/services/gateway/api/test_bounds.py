"""What one request may ask for at most: each bound exactly, and its key in the refusal."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from common.config import RequestLimits
from common.errors import BatonError, Code
from common.messages import Structured, StructureKind
from services.gateway.api.bounds import (
    MemberCount,
    check_choices,
    check_stops,
    check_structured,
    nesting,
)

LIMITS = RequestLimits(
    n_max=3,
    stop_strings_max=2,
    stop_string_chars_max=4,
    schema_bytes_max=64,
    schema_depth_max=3,
    regex_chars_max=5,
    choices_max=2,
    json_elements_max=3,
    prompt_tokens_max=2,
)


def structured(kind: StructureKind, source: str) -> Callable[[], None]:
    return lambda: check_structured(Structured(kind=kind, source=source), LIMITS)


@pytest.mark.parametrize(
    ("fits", "exceeds", "key"),
    [
        (lambda: check_choices(3, LIMITS), lambda: check_choices(4, LIMITS), "n_max"),
        (
            lambda: check_stops(["a", "b"], LIMITS),
            lambda: check_stops(["a", "b", "c"], LIMITS),
            "stop_strings_max",
        ),
        (
            lambda: check_stops(["abcd"], LIMITS),
            lambda: check_stops(["a", "abcde"], LIMITS),
            "stop_string_chars_max",
        ),
        (
            structured(StructureKind.GRAMMAR, "é" * 32),
            structured(StructureKind.GRAMMAR, "é" * 32 + "x"),
            "schema_bytes_max",
        ),
        (
            structured(StructureKind.JSON, '{"a":{"enum":["[[[["]}}'),
            structured(StructureKind.JSON, '{"a":{"enum":[[]]}}'),
            "schema_depth_max",
        ),
        (
            structured(StructureKind.STRUCTURAL_TAG, "[[[]]]"),
            structured(StructureKind.STRUCTURAL_TAG, "[[[[]]]]"),
            "schema_depth_max",
        ),
        (
            structured(StructureKind.REGEX, "a{,9}"),
            structured(StructureKind.REGEX, "a{,99}"),
            "regex_chars_max",
        ),
        (
            structured(StructureKind.CHOICE, '["a","b"]'),
            structured(StructureKind.CHOICE, '["a","b","c"]'),
            "choices_max",
        ),
    ],
)
def test_what_fits_passes_and_one_more_is_refused_with_the_key(
    fits: Callable[[], None], exceeds: Callable[[], None], key: str
) -> None:
    fits()
    with pytest.raises(BatonError) as raised:
        exceeds()
    assert raised.value.code is Code.INVALID_REQUEST
    assert f"(gateway.limits.{key})" in raised.value.message
    assert raised.value.param


@pytest.mark.parametrize(
    ("value", "levels"),
    [(1, 0), ({}, 1), ({"a\\": '"[{'}, 1), ([[], [[]]], 3), ({'"': [{"b": "]"}]}, 3)],
)
def test_nesting_counts_brackets_outside_of_strings(value: object, levels: int) -> None:
    assert nesting(json.dumps(value)) == levels


@pytest.mark.parametrize(
    "pieces", [[b"[[,{{x}}]]"], [b"[[", b",", b'{":{"'], [b"[", b"[,[", b"x["]]
)
def test_members_are_counted_over_all_pieces_of_a_body(pieces: list[bytes]) -> None:
    count = MemberCount(LIMITS)
    for piece in pieces:
        count.add(piece)
    with pytest.raises(BatonError, match="json_elements_max and prompt_tokens_max"):
        count.add(b'"an end",')
