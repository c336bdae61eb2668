"""Verdicts: worse soon, better late, never flapping."""

from pathlib import Path

from services.health.verdicts.host_verdict import (
    BETTER_AFTER,
    WORSE_AFTER,
    HealthLevel,
    Probe,
    VerdictHysteresis,
)
from services.health.verdicts.probes import host_probes


def probe(value: float) -> Probe:
    return Probe("p", value, 0.5, 0.9, f"p is {value}")


def test_limits_are_exclusive() -> None:
    assert [probe(v).verdict for v in (0.5, 0.51, 0.9, 0.91)] == [
        HealthLevel.UP,
        HealthLevel.DEGRADED,
        HealthLevel.DEGRADED,
        HealthLevel.DOWN,
    ]


def test_worse_after_two_rounds_better_after_three() -> None:
    judge = VerdictHysteresis()
    changes = [judge.round([probe(0.95)]) for _ in range(WORSE_AFTER)]
    assert changes == [False, True]
    assert judge.verdict is HealthLevel.DOWN
    assert list(judge.reasons) == ["p is 0.95"]
    changes = [judge.round([probe(0.1)]) for _ in range(BETTER_AFTER)]
    assert changes == [False, False, True]
    assert list(judge.reasons) == []
    assert judge.round([probe(0.1)]) is False


def test_a_flapping_probe_does_not_flap_the_verdict() -> None:
    judge = VerdictHysteresis()
    for value in (0.95, 0.1) * 20:
        assert judge.round([probe(value)]) is False
    assert judge.verdict is HealthLevel.UP


def test_each_change_is_counted_from_the_one_before() -> None:
    """Rounds that have led to one verdict count for no further one."""
    judge, stood = VerdictHysteresis(), []
    up, degraded, down = HealthLevel
    for value in (0.6, 0.6, 0.95, 0.95, 0.6, 0.6, 0.6, 0.1, 0.1, 0.1):
        judge.round([probe(value)])
        stood.append(judge.verdict)
    assert stood == [up, *[degraded] * 2, *[down] * 3, *[degraded] * 3, up]


def test_good_rounds_that_are_not_in_a_row_make_it_no_better() -> None:
    judge = VerdictHysteresis()
    values = [0.95, 0.95, *([0.1] * (BETTER_AFTER - 1) + [0.95]) * 3]
    assert [judge.round([probe(value)]) for value in values].count(True) == 1
    assert judge.verdict is HealthLevel.DOWN


def test_the_worst_probe_decides() -> None:
    judge = VerdictHysteresis()
    for _ in range(WORSE_AFTER):
        judge.round([probe(0.1), probe(0.6), probe(0.95)])
    assert judge.verdict is HealthLevel.DOWN


def test_host_probes_measure_this_host(tmp_path: Path) -> None:
    values = {p.name: p.value for p in host_probes(tmp_path)}
    assert set(values) == {"memory_used", "disk_used"}
    assert all(0 < value < 1 for value in values.values())
