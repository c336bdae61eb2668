"""What is usual of a duration that repeats."""

from common.telemetry.rolling_p99 import SAMPLES_MIN, WINDOW, RollingP99


def test_too_few_samples_give_no_p99() -> None:
    durations = RollingP99()
    for _ in range(SAMPLES_MIN - 1):
        durations.add(0.01)
    assert durations.p99_ms() == 0.0
    durations.add(0.01)
    assert durations.p99_ms() == 10.0


def test_one_slow_step_in_hundreds_is_not_usual_and_old_ones_are_forgotten() -> None:
    durations = RollingP99()
    for i in range(300):
        durations.add(5.0 if i == 7 else 0.02)
    assert durations.p99_ms() == 20.0
    for _ in range(WINDOW):
        durations.add(0.5)
    assert durations.p99_ms() == 500.0
