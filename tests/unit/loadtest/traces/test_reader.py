"""Both kinds of trace, streamed; broken rows are counted, named by line, and cost no other row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import ConfigError
from loadtest.traces.reader import _rows, read
from loadtest.traces.rows import NAMED_MAX, Reading, Row

MOONCAKE = (
    '{"timestamp": 500, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 2500, "input_length": 512, "output_length": 9, "hash_ids": [0]}\n'
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,8\n"
)


def rows(tmp_path: Path, text: str, limit: int = 0) -> tuple[list[Row], Reading]:
    path = tmp_path / "trace"
    path.write_text(text)
    reading = Reading(path.name)
    return list(read(path, reading, limit)), reading


def test_mooncake_counts_from_its_first_row_and_keeps_the_blocks(tmp_path: Path) -> None:
    found, reading = rows(tmp_path, MOONCAKE)
    assert found == [Row(0.0, 700, 5, (0, 1)), Row(2.0, 512, 9, (0,))]
    assert (reading.rows, reading.bad) == (2, 0)


def test_azure_has_seven_decimals(tmp_path: Path) -> None:
    found, reading = rows(tmp_path, AZURE)
    assert [row[1:3] for row in found] == [(4808, 10), (3180, 8)]
    assert found[1].at == pytest.approx(0.052, abs=1e-6)
    assert reading.bad == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"timestamp": 3000, "input_length": 7}', "output_length"),
        ('{"timestamp": 3000, "input_length": 600, "output_length": 1, "hash_ids": [1]}', "2 are"),
        ('{"timestamp": 3000, "input_length": 0, "output_length": 1}', "prompt of 0 tokens"),
        ('{"timestamp": 3000, "input_length": "7', "malformed"),
        ("neither", "malformed"),
        ('{"timestamp": -9000, "input_length": 7, "output_length": 1}', "goes back"),
        ("2023-11-16 18:17:03.97,1", "2 columns"),
        ("yesterday,1,1", "not a date"),
        ("2023-11-16 18:17:03,many,1", "whole numbers"),
        ("2023-11-16 18:17:03,1,-4", "output of -4"),
    ],
)
def test_a_broken_row_is_named_by_its_line(tmp_path: Path, line: str, why: str) -> None:
    good = AZURE if "," in line and not line.startswith("{") else MOONCAKE
    found, reading = rows(tmp_path, good + line + "\n")
    before = good.count("\n")
    assert len(found) == 2
    assert reading.bad == 1
    assert reading.named[0].startswith(f"trace:{before + 1}: ")
    assert why in reading.named[0]


def test_a_little_disorder_is_no_fault_and_time_never_falls(tmp_path: Path) -> None:
    late = '{"timestamp": 2000, "input_length": 7, "output_length": 1}\n'
    found, reading = rows(tmp_path, MOONCAKE + late)
    assert [row.at for row in found] == [0.0, 2.0, 2.0]
    assert reading.bad == 0


def test_only_so_many_are_named(tmp_path: Path) -> None:
    _, reading = rows(tmp_path, MOONCAKE + "{}\n" * 40)
    assert (reading.bad, len(reading.named)) == (40, NAMED_MAX)


def test_it_streams_and_stops_at_the_limit() -> None:
    def endless() -> Iterator[tuple[int, str]]:
        number = 0
        while True:
            number += 1
            yield number, MOONCAKE.splitlines()[0]

    assert len(list(_rows(endless(), Reading("endless"), 1_000))) == 1_000


@pytest.mark.parametrize("text", ["", "hello\nworld\n"])
def test_a_file_without_a_row_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="no row"):
        rows(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read(tmp_path / "none", Reading("none")))
