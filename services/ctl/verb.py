"""What a verb of `baton ctl` is. `parser.py` makes the command line and its help of the
declarations, and shell completion reads that help."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: From a verb's name and arguments to the router's result. Raises BatonError.
Ask = Callable[[str, dict[str, Any]], Any]
#: What argparse's `add_argument` takes: the name and the rest. The router knows the argument by the
#: same name, without dashes.
Argument = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Verb:
    """The declaration of one verb."""

    name: str
    #: One line, for the list of verbs and as the head of the verb's own help.
    help: str
    #: Makes text for people of the router's result; None: they are shown JSON.
    render: Callable[[Any], str] | None = None
    arguments: tuple[Argument, ...] = ()
    #: Command lines without `baton ctl`, with a shell comment where one helps.
    examples: tuple[str, ...] = ()
    #: Replaces the question to the router, for a verb that the router does not know. Returns the
    #: sentence to show. Raises BatonError.
    run: Callable[[Ask, dict[str, Any]], str] | None = None


def argument(name: str, **options: Any) -> Argument:
    return name, options


def value(text: str) -> str | int | bool:
    """Reads a truth value or a whole number; other text stays for the router to judge."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text
