"""A slope is found across restarts, and a restart is no slope."""

from __future__ import annotations

import pytest

from tests.chaos.memory import WARM_SECONDS, Memory, slope, warm

MIB = float(1 << 20)


def grows(start: float, level: float, per_second: float, points: int) -> list[tuple[float, float]]:
    return [(start + 10.0 * n, level + per_second * 10.0 * n) for n in range(points)]


def test_one_slope_of_series_at_different_levels() -> None:
    several = [grows(0, 100 * MIB, 3.0, 20), grows(500, 20 * MIB, 3.0, 7), []]
    assert slope(several) == pytest.approx(3.0)


def test_a_restart_to_less_memory_hides_no_growth_and_to_more_is_none() -> None:
    assert slope([grows(0, 300 * MIB, 0.0, 9), grows(100, 50 * MIB, 0.0, 9)]) == 0.0
    assert slope([grows(0, 50 * MIB, 5.0, 9), grows(100, 10 * MIB, 5.0, 9)]) > 4.9


def test_the_start_does_not_count() -> None:
    series = grows(0, 10 * MIB, 1_000.0, 40)
    assert warm(series)[0][0] == WARM_SECONDS


def test_a_leak_fails_and_too_little_is_no_verdict() -> None:
    memory = Memory()
    memory.series["g0", 1] = grows(0, 80 * MIB, 2 * MIB / 60, 60)
    memory.series["g0", 2] = grows(900, 80 * MIB, 2 * MIB / 60, 60)
    memory.series["r0", 3] = grows(0, 80 * MIB, 0.5 * MIB / 60, 60)
    memory.series["d0", 4] = grows(0, 80 * MIB, 2 * MIB / 60, 10)
    rows = memory.rows(["g0", "r0", "d0"])
    assert [row.good for row in rows] == [False, True, None]
    assert rows[0].figure.startswith("+2.00 MiB/min over")
