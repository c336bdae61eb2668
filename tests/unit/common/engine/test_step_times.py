"""What is usual for an engine's step."""

from common.engine.step_times import STEPS_MIN, WINDOW, StepTimes


def test_too_few_steps_say_nothing() -> None:
    times = StepTimes()
    for _ in range(STEPS_MIN - 1):
        times.add(0.01)
    assert times.p99_ms() == 0.0
    times.add(0.01)
    assert times.p99_ms() == 10.0


def test_one_slow_step_in_hundreds_is_not_usual_and_old_ones_are_forgotten() -> None:
    times = StepTimes()
    for i in range(300):
        times.add(5.0 if i == 7 else 0.02)
    assert times.p99_ms() == 20.0
    for _ in range(WINDOW):
        times.add(0.5)
    assert times.p99_ms() == 500.0
