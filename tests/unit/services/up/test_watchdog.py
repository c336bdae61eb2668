"""Which children have hung."""

from services.up.watchdog import STEP_SECONDS_MAX, Watchdog


def test_a_child_that_beats_no_more_has_hung_once() -> None:
    watchdog = Watchdog(3.0)
    watchdog.heard("g0")
    watchdog.heard("d0")
    assert [watchdog.passed(1.0) for _ in range(2)] == [[], []]
    watchdog.heard("d0")
    assert [watchdog.passed(1.0) for _ in range(3)] == [[], ["g0"], []]
    assert watchdog.passed(1.0) == ["d0"]


def test_a_child_that_was_never_ready_or_has_ended_does_not_hang() -> None:
    watchdog = Watchdog(3.0)
    watchdog.heard("d0")
    watchdog.ended("d0")
    watchdog.ended("never there")
    assert [watchdog.passed(1.0) for _ in range(9)] == [[]] * 9


def test_a_supervisor_that_was_stopped_itself_blames_nobody() -> None:
    watchdog = Watchdog(2 * STEP_SECONDS_MAX)
    watchdog.heard("g0")
    assert watchdog.passed(3600.0) == []
    watchdog.heard("g0")
    assert [watchdog.passed(3600.0) for _ in range(3)] == [[], [], ["g0"]]


def test_none_hangs_where_the_watchdog_is_off() -> None:
    watchdog = Watchdog(0.0)
    watchdog.heard("g0")
    assert [watchdog.passed(STEP_SECONDS_MAX) for _ in range(100)] == [[]] * 100
