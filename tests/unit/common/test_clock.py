"""The manual clock moves as told; the system clock does not go back."""

import pytest

from common.clock import ManualClock, SystemClock


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(start=5.0, unix_ms=1000)
    assert clock.monotonic() == 5.0
    clock.advance(0.25)
    assert clock.monotonic() == 5.25
    assert clock.unix_ms() == 1000 + 5250
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-0.1)


def test_system_clock_is_monotonic_in_seconds() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)
    assert clock.unix_ms() > 1_700_000_000_000
