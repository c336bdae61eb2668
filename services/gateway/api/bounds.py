"""The checks of `[gateway.limits]`. Each refusal names the key that an operator could raise.

Every function here raises BatonError(INVALID_REQUEST).
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from common.config import RequestLimits
from common.errors import BatonError, Code
from common.messages import Structured, StructureKind

JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
BRACKET = re.compile(r"[\[\]{}]")
PARAM = "structured_outputs"


def check_stops(stops: Collection[str], limits: RequestLimits) -> None:
    check_size("stop", "stop strings", len(stops), limits.stop_strings_max, "stop_strings_max")
    longest = max(map(len, stops), default=0)
    most = limits.stop_string_chars_max
    check_size("stop", "characters in a stop string", longest, most, "stop_string_chars_max")


def check_choices(n: int, limits: RequestLimits) -> None:
    check_size("n", "choices", n, limits.n_max, "n_max")


def check_structured(structured: Structured, limits: RequestLimits) -> None:
    """Checks size and depth before anything parses the text."""
    source = structured.source
    if structured.kind is StructureKind.REGEX:
        size, most = len(source), limits.regex_chars_max
        check_size(PARAM, "characters in the regex", size, most, "regex_chars_max")
        return
    size, most = len(source.encode(errors="replace")), limits.schema_bytes_max
    check_size(PARAM, f"bytes in the {structured.kind.value}", size, most, "schema_bytes_max")
    if structured.kind in {StructureKind.JSON, StructureKind.STRUCTURAL_TAG}:
        depth, most = nesting(source), limits.schema_depth_max
        check_size(PARAM, "levels in the schema", depth, most, "schema_depth_max")
    if structured.kind is StructureKind.CHOICE:
        count, most = len(msgspec.json.decode(source)), limits.choices_max
        check_size(PARAM, "strings to choose from", count, most, "choices_max")


class MemberCount:
    """Bounds what decoding a body can make, from its commas and opening brackets. Those within
    strings count too, but a text with so many is longer than any prompt."""

    def __init__(self, limits: RequestLimits) -> None:
        self._most = limits.json_elements_max + limits.prompt_tokens_max
        self._members = 0

    def add(self, piece: bytes) -> None:
        """Of the body, as it comes."""
        self._members += len(piece) - len(piece.translate(None, b",[{"))
        keys = "json_elements_max and prompt_tokens_max"
        check_size("body", "commas and opening brackets", self._members, self._most, keys)


def check_size(param: str, what: str, size: int, most: int, key: str) -> None:
    if size > most:
        sentence = f"{param}: {size} {what}, at most {most} (gateway.limits.{key})"
        raise BatonError(Code.INVALID_REQUEST, sentence, param=param)


def nesting(text: str) -> int:
    """The levels of objects and arrays in JSON text, found in linear time. The text need not be
    valid."""
    depth = deepest = 0
    for bracket in BRACKET.findall(JSON_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
