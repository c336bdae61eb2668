"""Checks whether the user `baton`, inside the units' sandbox, can read what it needs.

A virtual environment in a home directory is a common first installation, where a unit fails with
nothing but `status=203/EXEC`. The check therefore comes before anything is written.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
PRIVATE = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - named because units do not see them


def in_home(paths: Iterable[Path]) -> list[Path]:
    """Those that `ProtectHome=yes` hides."""
    return [path for path in paths if any(path.is_relative_to(home) for home in HOMES)]


def in_private_tmp(paths: Iterable[Path]) -> list[Path]:
    """Those that `PrivateTmp=yes` hides."""
    return [path for path in paths if any(path.is_relative_to(folder) for folder in PRIVATE)]


def closed(path: Path) -> Path | None:
    """The first folder on the way to `path`, or `path` itself, that others may not enter or read;
    None when the way is open or ends at something that is not there yet."""
    for folder in reversed(path.parents):
        if not folder.exists():
            return None
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    if path.exists() and not path.stat().st_mode & stat.S_IROTH:
        return path
    return None
