"""What an admin verb does: a function from the router's tables and checked arguments to a result. A
verb changes the router only by an event into the core. Each verb has its own file; `registry.py`
lists them, and `common/net/admin_verbs.py` declares what they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from common.config.live import Reading
from common.errors import BatonError, Code
from common.net.admin_verbs import AdminVerb, Arg, Value
from services.router.admin.event_log import EventLog
from services.router.events import Event
from services.router.tables import SharedTables, Tables


def _no_core(event: Event) -> None:
    raise BatonError(Code.INTERNAL, f"{type(event).__name__}: nobody acts here")


def _no_file() -> Reading:
    raise BatonError(Code.INTERNAL, "this router has no file to read again")


@dataclass(frozen=True, slots=True)
class View:
    """What verbs may use."""

    #: For reading only.
    shared: SharedTables
    #: On the core's clock.
    now: float
    #: Frames that never reached the core, by reason.
    shell_dropped: dict[str, int]
    #: Gives the core an event, and returns when the core has handled it.
    act: Callable[[Event], object] = _no_core
    #: Reads the fleet file again. Raises ConfigError.
    reload: Callable[[], Reading] = _no_file
    event_log: EventLog = field(default_factory=EventLog)

    @property
    def tables(self) -> Tables:
        """Those of the first model, which is the only one of most fleets."""
        return next(iter(self.shared.models.values()))


#: Returns what msgspec can encode. Raises BatonError.
Run = Callable[[View, dict[str, Value]], Any]


def checked(verb: AdminVerb, given: dict[str, Any]) -> dict[str, Value]:
    """The arguments with their defaults. Raises BatonError(INVALID_REQUEST) that names the mistake
    and what is allowed."""
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


def _one(verb: AdminVerb, arg: Arg, value: object) -> Value:
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
    if arg.choices and value not in (*arg.choices, arg.default):
        raise _bad(f"{what} must be one of: {', '.join(arg.choices)}")
    return value


def _bad(sentence: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, sentence)
