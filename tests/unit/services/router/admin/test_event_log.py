"""The stream of notes: no event is missed without being counted, none is told twice."""

from hypothesis import given
from hypothesis import strategies as st

from services.router.admin.event_log import EventLog
from services.router.events import Note


def noted(count: int, most: int = 1000) -> EventLog:
    log = EventLog(most)
    for number in range(1, count + 1):
        log.add(Note("info", "a.b", str(number), {"request_id": "r"}), number)
    return log


def sentences(told: dict[str, object]) -> list[str]:
    events = told["events"]
    assert isinstance(events, list)
    return [event["sentence"] for event in events]


def test_the_latest_are_told_first_and_then_what_came_after() -> None:
    log = noted(5)
    latest = log.after(-1, 2)
    assert (sentences(latest), latest["last"], latest["missed"]) == (["4", "5"], 5, 0)
    assert log.after(5, 2) == {"events": [], "last": 5, "missed": 0}
    log.add(Note("warning", "c.d", "6"), 6)
    assert log.after(5, 2)["events"] == [
        {
            "number": 6,
            "unix_ms": 6,
            "level": "warning",
            "event": "c.d",
            "sentence": "6",
            "request_id": "",
        }
    ]


def test_who_comes_too_late_is_told_how_many_are_gone() -> None:
    told = noted(10, most=4).after(3, 100)
    assert (sentences(told), told["missed"]) == (["7", "8", "9", "10"], 3)


def test_a_number_of_an_earlier_router_is_taken_for_none() -> None:
    assert sentences(noted(2).after(900, 10)) == ["1", "2"]


@given(st.integers(0, 30), st.integers(1, 10), st.integers(1, 5), st.integers(0, 30))
def test_a_cursor_sees_each_event_once_or_knows_that_it_missed_it(
    count: int, most: int, limit: int, start: int
) -> None:
    log = noted(count, most)
    start = min(start, count)
    seen: list[int] = []
    missed, after = 0, start
    while True:
        told = log.after(after, limit)
        if not told["events"]:
            break
        missed += told["missed"]
        seen += [int(text) for text in sentences(told)]
        after = told["last"]
    assert seen == sorted(set(seen))
    assert len(seen) + missed == count - start
