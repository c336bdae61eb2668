"""The command line of `baton ctl`, parsed: `VERB [VALUE...] [NAME=VALUE...] [--flags]`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.ctl.renderers import VERBS

VALUED = ("--run-dir", "--config", "--timeout", "--router", "--every")
LISTS = ("--slow", "--failed", "--refused", "--recent")
SWITCHES = ("--json", "--queue", *LISTS, "--watch", "--follow", "--help", "-h")
READY = "ready"
TIMEOUT_SECONDS = 5.0
EVERY_SECONDS = 2.0
SECONDS_MAX = 3600.0


class UsageError(Exception):
    """What the person typed cannot be meant; the text says what to type instead."""


@dataclass(slots=True)
class Command:
    """`timeout`: seconds to wait for the router; `every`: seconds between two questions of `watch`
    and `follow`; `names`: the workers that `ready` is about."""

    verb: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    help: bool = False
    run_dir: Path | None = None
    config: Path | None = None
    timeout: float = TIMEOUT_SECONDS
    router: str = ""
    watch: bool = False
    follow: bool = False
    every: float = EVERY_SECONDS
    names: tuple[str, ...] = ()


def parse(argv: list[str]) -> Command:
    """Raises UsageError. Flags may stand anywhere, as `--flag VALUE` or `--flag=VALUE`."""
    command = Command()
    words: list[str] = []
    switches: set[str] = set()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if flag in VALUED:
            if not equals:
                if not rest:
                    raise UsageError(f"{flag} needs a value")
                value = rest.pop(0)
            _set(command, flag, value)
        elif word in SWITCHES:
            switches.add(word)
        elif word.startswith("-"):
            known = ", ".join((*SWITCHES, *VALUED))
            raise UsageError(f"unknown flag {word}; there are: {known}")
        else:
            words.append(word)
    command.json, command.help = "--json" in switches, bool(switches & {"--help", "-h"})
    command.watch, command.follow = "--watch" in switches, "--follow" in switches
    _say_what(command, words, switches)
    return command


def _say_what(command: Command, words: list[str], switches: set[str]) -> None:
    if words[:1] == [READY]:
        command.verb, command.names = READY, tuple(words[1:])
    elif words:
        command.verb = words[0]
        command.args = _args(words[0], words[1:]) | _switched(switches)
    elif not command.help:
        raise UsageError("name a verb, for example: baton ctl status")
    if command.follow and (command.verb != "events" or command.watch):
        raise UsageError("--follow is of the verb events; for others there is --watch")
    if command.watch and command.verb == READY:
        raise UsageError("ready is asked once; baton ctl status --watch shows the same")


def _set(command: Command, flag: str, value: str) -> None:
    if flag == "--run-dir":
        command.run_dir = Path(value)
    elif flag == "--config":
        command.config = Path(value)
    elif flag == "--router":
        command.router = value
    elif flag == "--every":
        command.every = _seconds(flag, value)
    else:
        command.timeout = _seconds(flag, value)


def _seconds(flag: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError as error:
        raise UsageError(f"{flag} needs seconds, not {text!r}") from error
    if not 0 < seconds <= SECONDS_MAX:
        raise UsageError(f"{flag} must be more than 0 and at most {SECONDS_MAX:g} seconds")
    return seconds


def _args(verb: str, words: list[str]) -> dict[str, Any]:
    positional = VERBS[verb].positional if verb in VERBS else ()
    args: dict[str, Any] = {}
    bare = 0
    for word in words:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[a-z_]+", name):
            args[name] = _value(value)
        elif bare < len(positional):
            args[positional[bare]] = word
            bare += 1
        else:
            takes = " ".join(positional).upper() or "no bare values"
            raise UsageError(f"{verb}: what is {word!r}? it takes {takes} and NAME=VALUE")
    return args


def _switched(switches: set[str]) -> dict[str, Any]:
    """The arguments that some switches are short for."""
    args: dict[str, Any] = {"queue": True} if "--queue" in switches else {}
    lists = [flag.removeprefix("--") for flag in LISTS if flag in switches]
    return args | ({"list": lists[0]} if lists else {})


def _value(text: str) -> str | int | bool:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else text
