"""What a line must be, and which lines are put side by side."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from services.gateway.api.routes import Route
from services.gateway.jobs.plan import (
    ENDPOINTS,
    LineError,
    Planner,
    _body,
    prefix_of,
    request_body,
    split,
)

CHAT = "/v1/chat/completions"


def text_of(**more: Any) -> bytes:
    usual: dict[str, Any] = {
        "custom_id": "c",
        "method": "POST",
        "url": CHAT,
        "body": {"model": "m"},
    }
    return json.dumps(usual | more).encode()


def refusal(text: bytes, planner: Planner | None = None) -> str:
    line = (planner or Planner("batch_1", CHAT, 200)).plan(7, 0, text)
    assert line is not None
    return json.loads(line.entry)["error"]["message"] if line.entry else ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "must be an object with custom_id"),
        (b"[]", "must be an object"),
        (b"\xff\xfe", "must be an object"),
        (b"[" * 150, "must be an object"),
        (text_of(custom_id=7), "custom_id"),
        (text_of(custom_id=""), "custom_id must have 1 to 512 characters"),
        (text_of(method="GET"), "method must be POST, not 'GET'"),
        (text_of(url="/v1/embeddings"), f"url must be that of the batch, {CHAT}"),
        (text_of(body=[]), "body"),
        (text_of(body={"stream": True}), "body.stream must not be true"),
        (text_of(body={"x": "y" * 200}), "it has more than 200 bytes"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(text: bytes, why: str) -> None:
    found = refusal(text)
    assert found.startswith("line 7 was not run: ")
    assert why in found


@pytest.mark.parametrize(
    "text", [text_of(), text_of(method="post"), text_of(body={"stream": False})]
)
def test_a_good_line_has_no_entry(text: bytes) -> None:
    assert refusal(text) == ""


def test_a_custom_id_is_used_once() -> None:
    planner = Planner("batch_1", CHAT, 200)
    assert refusal(text_of(), planner) == ""
    line = planner.plan(8, 0, text_of())
    assert line is not None
    assert json.loads(line.entry)["custom_id"] == "c"
    assert b"line 7 has the same custom_id" in line.entry


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_line_is_for_the_route_of_its_batch(endpoint: Route) -> None:
    assert {route.value for route in ENDPOINTS} >= {CHAT, "/v1/embeddings"}
    good, other = text_of(url=endpoint.value), text_of(url=f"{endpoint.value}/")
    assert refusal(good, Planner("batch_1", endpoint.value, 200)) == ""
    assert endpoint.value in refusal(other, Planner("batch_1", endpoint.value, 200))


@pytest.mark.parametrize("text", [b"", b"  ", b"\r"])
def test_an_empty_line_is_none(text: bytes) -> None:
    assert Planner("batch_1", CHAT, 200).plan(1, 0, text) is None


def test_the_request_in_a_line_is_read_as_it_was_written() -> None:
    assert request_body(b'{"custom_id":"c","url":"/","body":{"a": 1.50}}') == b'{"a": 1.50}'
    with pytest.raises(LineError):
        request_body(b"gone")


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_a_file_is_split_alike_whatever_the_pieces(piece_bytes: int, end: bytes) -> None:
    text = b"one\n\nthree is long\r\nfour" + end
    pieces = [text[at : at + piece_bytes] for at in range(0, len(text), piece_bytes)]
    found = list(split(iter(pieces), 1000))
    for number, at, line in found:
        assert text[at : at + len(line)] == line
        assert text[:at].count(b"\n") == number - 1
    lines = [line for _, _, line in found]
    assert lines[:4] == [b"one", b"", b"three is long\r", b"four"]
    assert not any(lines[4:])


@pytest.mark.parametrize("piece_bytes", [1, 10, 1000])
def test_a_line_that_is_too_long_is_cut_and_the_next_one_is_found(piece_bytes: int) -> None:
    text = b"x" * 500 + b"\nok\n" + b"y" * 300
    pieces = [text[at : at + piece_bytes] for at in range(0, len(text), piece_bytes)]
    found = list(split(iter(pieces), 20))
    assert [(number, at, len(line)) for number, at, line in found] == [
        (1, 0, 21),
        (2, 501, 2),
        (3, 504, 21),
    ]


def prefix(prompt: str, **more: Any) -> bytes:
    return prefix_of(_body(json.dumps({"model": "m", "prompt": prompt, **more})))  # type: ignore[arg-type]


def test_prompts_that_begin_alike_are_neighbours() -> None:
    dice = random.Random(1)
    beginnings = ["".join(dice.choices("abc", k=3000)) for _ in range(8)]
    middles = ["".join(dice.choices("abc", k=3000)) for _ in range(3)]
    prompts = [
        (one, middle, f"{beginning}{text}{dice.random()}" + "z" * dice.randint(0, 50))
        for one, beginning in enumerate(beginnings)
        for middle, text in enumerate(middles)
        for _ in range(6)
    ]
    dice.shuffle(prompts)
    prompts.sort(key=lambda about: prefix(about[2]))
    groups = [about[:2] for about in prompts]
    changes = sum(before != after for before, after in pairwise(groups))
    assert changes == 8 * 3 - 1
    outer = [one for one, _ in groups]
    assert sum(before != after for before, after in pairwise(outer)) == 7


def test_texts_to_embed_that_begin_alike_are_neighbours() -> None:
    bodies = [json.dumps({"model": "m", "input": [word * 40, "x"]}) for word in ("ab", "cd", "ab")]
    first, other, again = (prefix_of(_body(body)) for body in bodies)  # type: ignore[arg-type]
    assert first == again != other


def test_a_model_and_tools_come_before_the_prompt() -> None:
    assert prefix("p")[:4] != prefix("p", model="n")[:4]
    assert prefix("p")[4:8] != prefix("p", tools=[{"name": "t"}])[4:8]
    assert len(prefix("p" * 1_000_000)) < 64
