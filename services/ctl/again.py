"""Asking again and again: `--watch`, and `events --follow`. Both end with Ctrl-C, status 0.

A router that does not answer is said once and asked again: whoever watches wants to see it return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.errors import BatonError, Code

CLEAR = "\x1b[H\x1b[2J"
FOLLOW_LIMIT = 1_000

Ask = Callable[[dict[str, Any]], Any]
"""From a verb's arguments to its result. Raises BatonError for a refusal, too."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """`sleep` takes seconds; a KeyboardInterrupt out of it is the end. `clears`: a person's screen,
    which shows the latest answer alone."""

    say: Callable[[str], None]
    sleep: Callable[[float], None]
    clears: bool = False


def watch(
    ask: Ask,
    args: dict[str, Any],
    text: Callable[[Any], str],
    seconds: float,
    terminal: Terminal,
) -> int:
    """Shows each answer. Returns the exit status."""

    def step() -> None:
        shown = text(ask(args))
        terminal.say(f"{CLEAR}{shown}" if terminal.clears else shown)

    return _repeated(step, seconds, terminal)


def follow(
    ask: Ask,
    args: dict[str, Any],
    lines: Callable[[Any], list[str]],
    seconds: float,
    terminal: Terminal,
) -> int:
    """Says each event once, in order, and how many came too early. Returns the exit status."""
    args = dict(args)

    def step() -> None:
        result = ask(args)
        for line in lines(result):
            terminal.say(line)
        args.update(after=result["last"], limit=FOLLOW_LIMIT)

    return _repeated(step, seconds, terminal)


def _repeated(step: Callable[[], None], seconds: float, terminal: Terminal) -> int:
    """A refusal ends it: the same question would be refused again."""
    lost = False
    try:
        while True:
            try:
                step()
                lost = False
            except BatonError as error:
                if error.code is not Code.ROUTER_UNREACHABLE:
                    terminal.say(error.message)
                    return 1
                if not lost:
                    terminal.say(f"({error.message}; asking again)")
                lost = True
            terminal.sleep(seconds)
    except KeyboardInterrupt:
        return 0
