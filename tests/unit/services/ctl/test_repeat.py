"""`--watch` and `events --follow`: what is said, what is said once, and what ends them."""

from typing import Any

from common.errors import BatonError, Code
from services.ctl.repeat import FOLLOW_LIMIT, follow, repeat

AWAY = BatonError(Code.ROUTER_UNREACHABLE, "no router answers")


class Router:
    """Answers in turn; after the last answer the person presses Ctrl-C."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._answers = list(answers)

    def ask(self, args: dict[str, Any]) -> Any:
        self.asked.append(dict(args))
        answer = self._answers.pop(0)
        if isinstance(answer, BatonError):
            raise answer
        return answer

    def sleep(self) -> None:
        if not self._answers:
            raise KeyboardInterrupt

    def watch(self) -> int:
        return repeat(lambda: str(self.ask({})), self.said.append, self.sleep)


def batch(*numbers: int, last: int) -> dict[str, Any]:
    return {"events": [{"sentence": f"number {n}"} for n in numbers], "last": last, "missed": 0}


def sentences(result: Any) -> str:
    return "\n".join(event["sentence"] for event in result["events"])


def test_a_router_that_is_away_is_said_once_and_asked_until_it_is_back() -> None:
    router = Router("a", AWAY, AWAY, "b", AWAY)
    assert router.watch() == 0
    away = "(no router answers; asking again)"
    assert router.said == ["a", away, "b", away]


def test_a_refusal_ends_it_with_1() -> None:
    router = Router(BatonError(Code.INVALID_REQUEST, "no verb 'x'"), "never asked")
    assert router.watch() == 1
    assert router.said == ["no verb 'x'"]


def test_events_are_followed_by_cursor_and_silence_prints_nothing() -> None:
    router = Router(batch(6, 7, last=7), AWAY, batch(last=7), batch(8, last=8))
    show = follow(router.ask, {"limit": 2}, sentences)
    assert repeat(show, router.said.append, router.sleep) == 0
    assert router.said == ["number 6\nnumber 7", "(no router answers; asking again)", "number 8"]
    next_one = {"after": 7, "limit": FOLLOW_LIMIT}
    assert router.asked == [{"limit": 2}, next_one, next_one, next_one]
