"""What one check found."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Level(enum.StrEnum):
    """How serious a finding is."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    #: The fleet runs, but worse than it could.
    WARN = "warn"
    #: A daemon would not start or not work.
    FAIL = "fail"


class Finding(NamedTuple):
    """The result of one check."""

    level: Level
    name: str
    #: What the check found, as a sentence.
    saw: str
    #: What to do about it; empty only if the check passed.
    fix: str = ""


def passed(name: str, saw: str) -> Finding:
    return Finding(Level.PASS, name, saw)


def warned(name: str, saw: str, fix: str) -> Finding:
    return Finding(Level.WARN, name, saw, fix)


def failed(name: str, saw: str, fix: str) -> Finding:
    return Finding(Level.FAIL, name, saw, fix)
