"""`docs/clients.md` has the harness' clients and turns, and each is recorded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.clients.scenarios import CLIENTS, RECORDED, TABLE, TURNS, Client
from tests.clients.table import PACKAGES, Result, rows_of, table

KEYS = [client.key for client in CLIENTS]


def test_the_page_has_every_client_and_turn() -> None:
    rows = rows_of(TABLE.read_text())
    assert [row[0] for row in rows] == [client.name for client in CLIENTS]
    for client, row in zip(CLIENTS, rows, strict=True):
        asked = [turn for turn, cell in zip(TURNS, row[2:], strict=True) if cell != "-"]
        assert asked == [turn for turn in TURNS if turn in client.turns]
        for turn, cell in zip(TURNS, row[2:], strict=True):
            assert cell.startswith("same") or turn in client.empty_turns or cell == "-"


def test_the_page_names_the_pinned_versions() -> None:
    pinned = (RECORDED.parent / "requirements.txt").read_text()
    modules = json.loads((RECORDED.parent / "package.json").read_text())["dependencies"]
    for client, row in zip(CLIENTS, rows_of(TABLE.read_text()), strict=True):
        package = PACKAGES[client.key]
        if package.startswith("npm:"):
            assert modules[package.removeprefix("npm:")] == row[1]
        else:
            assert f"\n{package}=={row[1]}\n" in pinned


@pytest.mark.parametrize("key", KEYS)
def test_every_client_is_recorded_without_words_of_its_own(key: str) -> None:
    requests = json.loads((RECORDED / f"{key}.json").read_text())
    assert requests
    for request in requests:
        assert set(request) == {"path", "body"}
        assert "/home" not in json.dumps(request)


def test_every_recording_is_of_a_client() -> None:
    assert {path.stem for path in RECORDED.glob("*.json")} == set(KEYS)


def test_a_cell_tells_what_differs() -> None:
    client = Client("x", "openai_python", "python", ("first turn", "stream", "tool call"))
    error = {"error": "E", "status": 400}
    ours = {"first turn": "a", "stream": "b", "tool call": error}
    result = Result(client, ours, ours | {"stream": "c"})
    cells = [result.cell(turn) for turn in ("first turn", "stream", "tool call", "second turn")]
    assert cells == ["same", "different", "same error", "-"]
    assert not result.is_same
    assert Result(client, ours, ours).is_same
    assert not Result(client, {}, {}).is_same
    assert rows_of(table([result], {"openai": "1"}))[0][:3] == ["x", "1", "same"]


@pytest.mark.parametrize("nothing", ["", [], {}, {"result": None, "error": None}, {"result": ""}])
def test_an_answer_that_is_empty_at_both_shows_nothing(nothing: object) -> None:
    client = Client("x", "openai_python", "python", ("first turn", "stream"))
    said = {"first turn": "a", "stream": nothing}
    result = Result(client, said, said)
    assert [result.cell(turn) for turn in client.turns] == ["same", "both empty"]
    assert not result.is_same
    expected = replace(client, empty_turns=("stream",))
    assert Result(expected, said, said).is_same
    assert not Result(expected, said, said | {"stream": "b"}).is_same
    assert not Result(replace(client, empty_turns=("first turn",)), said, said).is_same
