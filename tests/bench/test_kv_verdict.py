from __future__ import annotations

import pytest

from tests.bench.kv_verdict import Figures, Row, verdicts

MIB = 1 << 20


def row(
    mib: int, handoff: float = 1.0, raw: float = 0.9, nixl: float | None = 1.5, digest: float = 0.02
) -> Row:
    seconds = {"memcpy": 0.1, "raw": raw, "handoff": handoff, "no digest": handoff}
    seconds |= {} if nixl is None else {"nixl": nixl}
    return Row(mib * MIB, {name: Figures(s, s, s, s) for name, s in seconds.items()}, digest)


def words(*rows: Row) -> list[str]:
    return [line.split("  ")[0] for line in verdicts(rows)]


@pytest.mark.parametrize(
    ("bulk", "expected"),
    [
        (row(64), ["met", "met", "met"]),
        (row(64, raw=0.79), ["MISSED", "met", "met"]),
        (row(64, nixl=0.99), ["met", "MISSED", "met"]),
        (row(64, digest=0.031), ["met", "met", "MISSED"]),
        (row(64, nixl=None), ["met", "not measured", "met"]),
    ],
)
def test_each_target_has_its_verdict(bulk: Row, expected: list[str]) -> None:
    assert words(bulk) == expected


def test_cpu_that_the_clock_did_not_see_is_no_figure() -> None:
    seen = row(64)
    unseen = Row(seen.size, seen.paths | {"nixl": Figures(1.5, 1.5, 1.5, 0.0)}, 0.02)
    assert "1.50 times with 0.67 of its CPU" in verdicts([seen])[1]
    assert "1.50 times with ? of its CPU" in verdicts([unseen])[1]


def test_the_worst_bulk_size_decides_and_small_ones_do_not() -> None:
    assert words(row(16, raw=0.1), row(64), row(256)) == ["met", "met", "met"]
    assert words(row(64), row(256, raw=0.5)) == ["MISSED", "met", "met"]
    assert words(row(16)) == ["no verdict: nothing of 64 MiB or more was moved"]
