"""What one check found."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Level(enum.StrEnum):
    """`WARN`: it runs, but worse than it could. `FAIL`: a daemon would not start or not work."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """`fix`: what to do about it; empty only when all is well."""

    level: Level
    name: str
    saw: str
    fix: str = ""


def passed(name: str, saw: str) -> Finding:
    return Finding(Level.PASS, name, saw)


def warned(name: str, saw: str, fix: str) -> Finding:
    return Finding(Level.WARN, name, saw, fix)


def failed(name: str, saw: str, fix: str) -> Finding:
    return Finding(Level.FAIL, name, saw, fix)
