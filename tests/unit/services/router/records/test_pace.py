"""How many requests of the lowest class may begin on a decode worker."""

from __future__ import annotations

from services.router.records.pace import Pace


def begun(pace: Pace, now: float, seconds: float = 2.0, most: int = 3) -> int:
    """How many begin at this instant."""
    count = 0
    while count < 10 and pace.allows(now, seconds, most):
        pace.begun()
        count += 1
    return count


def test_after_a_rest_as_many_begin_together_as_may() -> None:
    pace = Pace()
    assert begun(pace, 100.0) == 3
    assert begun(pace, 100.0) == 0
    assert begun(pace, 1000.0) == 3


def test_one_more_begins_after_each_part_of_the_time_however_often_it_is_looked_at() -> None:
    pace = Pace()
    begun(pace, 100.0)
    found = [begun(pace, 100.0 + tenth / 10) for tenth in range(1, 61)]
    assert sum(found) in (2, 3)
    assert max(found) == 1


def test_one_begins_where_another_has_ended() -> None:
    pace = Pace()
    begun(pace, 100.0)
    pace.ended()
    assert begun(pace, 100.0) == 1


def test_what_ended_while_none_began_is_not_made_up_for() -> None:
    pace = Pace()
    for _ in range(20):
        pace.ended()
    assert begun(pace, 100.0) == 3


def test_who_begins_without_asking_leaves_no_debt() -> None:
    pace = Pace()
    begun(pace, 100.0)
    pace.begun()
    pace.begun()
    assert begun(pace, 102.0) == 1


def test_an_answer_that_takes_no_time_is_not_paced() -> None:
    pace = Pace()
    begun(pace, 100.0)
    assert pace.allows(100.0, 0.0, 3)
