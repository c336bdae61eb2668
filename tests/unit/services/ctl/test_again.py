"""`--watch` and `events --follow`: what is said, what is said once, and what ends them."""

from collections.abc import Callable
from typing import Any

import pytest

from common.errors import BatonError, Code
from services.ctl.again import CLEAR, FOLLOW_LIMIT, Terminal, follow, watch
from services.ctl.command import UsageError, parse
from services.ctl.verbs.events import lines

AWAY = BatonError(Code.ROUTER_UNREACHABLE, "no router answers")


class Router:
    """Answers in turn; after the last answer the person presses Ctrl-C."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.slept: list[float] = []
        self._answers = list(answers)

    def ask(self, args: dict[str, Any]) -> Any:
        self.asked.append(dict(args))
        answer = self._answers.pop(0)
        if isinstance(answer, BatonError):
            raise answer
        return answer

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self._answers:
            raise KeyboardInterrupt

    def terminal(self, *, clears: bool = False) -> Terminal:
        return Terminal(self.said.append, self._sleep, clears)


def event(number: int, **changes: object) -> dict[str, object]:
    given = {"number": number, "unix_ms": 1_700_000_000_000, "level": "info", "request_id": ""}
    return given | {"event": "worker.ready", "sentence": f"number {number}"} | changes


def batch(*numbers: int, missed: int = 0) -> dict[str, object]:
    return {"events": [event(n) for n in numbers], "last": max(numbers), "missed": missed}


def sentences(result: Any) -> list[str]:
    return [each["sentence"] for each in result["events"]]


def test_a_watched_verb_is_asked_again_and_only_a_screen_is_cleared() -> None:
    for clears, before in ((True, CLEAR), (False, "")):
        router = Router("a", "b")
        text: Callable[[Any], str] = str.upper
        assert watch(router.ask, {"x": 1}, text, 2.0, router.terminal(clears=clears)) == 0
        assert router.said == [f"{before}A", f"{before}B"]
        assert router.asked == [{"x": 1}, {"x": 1}]
        assert router.slept == [2.0, 2.0]


def test_a_router_that_is_away_is_said_once_and_asked_until_it_is_back() -> None:
    router = Router("a", AWAY, AWAY, "b", AWAY)
    assert watch(router.ask, {}, str, 1.0, router.terminal()) == 0
    away = "(no router answers; asking again)"
    assert router.said == ["a", away, "b", away]


def test_a_refusal_ends_it_with_1() -> None:
    router = Router(BatonError(Code.INVALID_REQUEST, "no verb 'x'"), "never asked")
    assert watch(router.ask, {}, str, 1.0, router.terminal()) == 1
    assert router.said == ["no verb 'x'"]


def test_events_are_followed_by_cursor() -> None:
    router = Router(batch(6, 7), AWAY, batch(8, 9))
    assert follow(router.ask, {"limit": 2}, sentences, 1.0, router.terminal()) == 0
    assert router.said == [
        "number 6", "number 7", "(no router answers; asking again)", "number 8", "number 9"
    ]  # fmt: skip
    next_one = {"after": 7, "limit": FOLLOW_LIMIT}
    assert router.asked == [{"limit": 2}, next_one, next_one]


def test_an_event_is_a_line_with_its_request_and_its_weight() -> None:
    result = {
        "events": [event(4), event(5, level="warning", request_id="abc")],
        "last": 5,
        "missed": 3,
    }
    first, plain, warning = lines(result)
    assert first == "(3 older events are gone)"
    assert plain.endswith("   number 4")
    assert warning.endswith(" ! number 5 [abc]")


@pytest.mark.parametrize("argv", [["status", "--follow"], ["events", "--follow", "--watch"]])
def test_follow_is_of_events_alone(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="--follow is of the verb events"):
        parse(argv)


def test_ready_is_asked_once() -> None:
    with pytest.raises(UsageError, match="ready is asked once"):
        parse(["ready", "d0", "--watch"])


def test_how_often_is_said_in_seconds() -> None:
    assert parse(["status", "--watch", "--every", "0.5"]).every == 0.5
    with pytest.raises(UsageError, match="--every must be more than 0"):
        parse(["status", "--every=0"])
