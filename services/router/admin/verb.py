"""What an admin verb is: a function from the router's tables and checked arguments to a plain
result, with its help. What it changes, it changes by an event into the core. One file per verb;
`registry.py` lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from common.config.live import Reading
from common.errors import BatonError, Code
from services.router.events import Event
from services.router.recent import Recent
from services.router.tables import Tables

Value = str | int | bool


def _nobody(event: Event) -> None:
    raise BatonError(Code.INTERNAL, f"{type(event).__name__}: nobody acts here")


def _no_file() -> Reading:
    raise BatonError(Code.INTERNAL, "this router has no file to read again")


@dataclass(frozen=True, slots=True)
class View:
    """What verbs may read. `now` is on the core's clock; `shell_dropped` counts frames that never
    reached the core; `verbs` is the registry; `act` gives the core an event and returns when it was
    handled; `reload` reads the fleet file again; `recent`: the latest notes."""

    tables: Tables
    now: float
    shell_dropped: dict[str, int]
    verbs: tuple[Verb, ...] = ()
    act: Callable[[Event], None] = _nobody
    reload: Callable[[], Reading] = _no_file
    recent: Recent = field(default_factory=Recent)


@dataclass(frozen=True, slots=True)
class Arg:
    """`default` None: required. `choices`, `least`, `most`: what is allowed."""

    name: str
    help: str
    default: Value | None = None
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Verb:
    """`run` returns what MessagePack and JSON can carry. Raises BatonError."""

    name: str
    help: str
    args: tuple[Arg, ...]
    run: Callable[[View, dict[str, Value]], Any]

    def usage(self) -> str:
        shown = [
            a.name if a.default is None else f"[{a.name}={a.default}]".replace("=-1]", "]")
            for a in self.args
        ]
        return " ".join([self.name, *shown])


def checked(verb: Verb, given: dict[str, Any]) -> dict[str, Value]:
    """Complete arguments. Raises BatonError(INVALID_REQUEST) naming what is wrong and allowed."""
    known = {arg.name: arg for arg in verb.args}
    for name in given:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise _bad(f"{verb.name} has no argument {name[:64]!r}; it takes: {allowed}")
    values: dict[str, Value] = {}
    for arg in verb.args:
        if arg.name in given:
            values[arg.name] = _one(verb, arg, given[arg.name])
        elif arg.default is None:
            raise _bad(f"{verb.name} needs {arg.name!r}: {arg.help}")
        else:
            values[arg.name] = arg.default
    return values


def _one(verb: Verb, arg: Arg, value: object) -> Value:
    what = f"{verb.name}: {arg.name}"
    if isinstance(arg.default, bool):
        if not isinstance(value, bool):
            raise _bad(f"{what} must be true or false")
        return value
    if isinstance(arg.default, int):
        if isinstance(value, bool) or not isinstance(value, int):
            raise _bad(f"{what} must be a whole number")
        if not arg.least <= value <= arg.most:
            raise _bad(f"{what} must be between {arg.least} and {arg.most}")
        return value
    if not isinstance(value, str):
        raise _bad(f"{what} must be text")
    if arg.choices and value not in arg.choices:
        raise _bad(f"{what} must be one of: {', '.join(filter(None, arg.choices))}")
    return value


def _bad(sentence: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, sentence)
