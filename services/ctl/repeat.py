"""Asks again and again, for `--watch` and `events --follow`, until Ctrl-C.

A router that does not answer is reported once and asked until it is back. A refusal ends the
repetition, for the same question would be refused again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.errors import BatonError, Code

FOLLOW_LIMIT = 1_000


def follow(
    ask: Callable[[dict[str, Any]], Any], args: dict[str, Any], render: Callable[[Any], str]
) -> Callable[[], str]:
    """Makes a function that returns the events since it was called last, or nothing: each question
    names the last event of the answer before."""
    args = dict(args)

    def show() -> str:
        result = ask(args)
        args.update(after=result["last"], limit=FOLLOW_LIMIT)
        return render(result) if result["events"] else ""

    return show


def repeat(show: Callable[[], str], say: Callable[[str], None], sleep: Callable[[], None]) -> int:
    """Says what `show` returns. A KeyboardInterrupt ends it. Returns the exit status."""
    lost = False
    try:
        while True:
            try:
                text = show()
                lost = False
            except BatonError as error:
                if error.code is not Code.ROUTER_UNREACHABLE:
                    say(error.message)
                    return 1
                text = "" if lost else f"({error.message}; asking again)"
                lost = True
            if text:
                say(text)
            sleep()
    except KeyboardInterrupt:
        return 0
