"""What a verb of `baton ctl` is. `parser.py` makes the command line and its help of it, and shell
completion reads that help."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from common.net.admin_verbs import AdminVerb, Arg
from services.ctl.table import every_column

#: From a verb's name and arguments to the router's result. Raises BatonError.
Ask = Callable[[str, dict[str, Any]], Any]
#: What argparse's `add_argument` takes: the name and the rest. The router knows the argument by the
#: same name, without dashes.
Argument = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb as it can be typed."""

    name: str
    #: One line, for the list of verbs and as the head of the verb's own help.
    help: str
    #: Makes text for people of the router's result; people are shown JSON where it raises.
    render: Callable[[Any], str] = every_column
    arguments: tuple[Argument, ...] = ()
    #: Command lines without `baton ctl`, with a shell comment where one helps.
    examples: tuple[str, ...] = ()
    #: Replaces the question to the router, for a verb that the router does not know. Returns the
    #: sentence to show. Raises BatonError.
    run: Callable[[Ask, dict[str, Any]], str] | None = None


def verb_of(
    declared: AdminVerb,
    render: Callable[[Any], str] = every_column,
    more: tuple[Argument, ...] = (),
) -> Verb:
    """The verb that the router declares. `more`: options that only `baton ctl` has. A text that
    comes first, and the required ones that follow it, may be typed without their names."""
    first = declared.args[:1] if declared.args and _is_text(declared.args[0]) else ()
    bare = (*first, *takewhile(lambda arg: arg.default is None, declared.args[1:]))
    options = declared.args[len(bare) :]
    arguments = [
        *(argument(arg.name, nargs="?", metavar=arg.name.upper(), help=_help(arg)) for arg in bare),
        *more,
        *(argument(f"--{arg.name.replace('_', '-')}", **_option(arg)) for arg in options),
    ]
    return Verb(declared.name, declared.help, render, tuple(arguments), declared.examples)


def argument(name: str, **options: Any) -> Argument:
    return name, options


def value(text: str) -> str | int | bool:
    """Reads a truth value or a whole number; other text stays for the router to judge."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text


def _is_text(arg: Arg) -> bool:
    return arg.default is None or isinstance(arg.default, str)


def _option(arg: Arg) -> dict[str, Any]:
    if isinstance(arg.default, bool):
        return {"action": "store_true", "help": _help(arg)}
    if _is_text(arg):
        return {"metavar": arg.name.upper(), "help": _help(arg)}
    return {"type": value, "metavar": "N", "help": _help(arg)}


def _help(arg: Arg) -> str:
    """For argparse, in whose help texts a percent sign stands for itself when doubled."""
    choices = f": {', '.join(arg.choices)}" if arg.choices else ""
    default = f" ({arg.default})" if arg.default not in (None, "", -1, False) else ""
    return f"{arg.help}{choices}{default}".replace("%", "%%")
