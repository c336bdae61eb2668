"""`up.json` in the run directory: which daemons keep dying, as their supervisor sees it.

`baton up` writes it, since the daemons themselves are not there to tell. `baton ctl status` and the
health daemon read it. A supervisor that is gone says nothing any more.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from common.process.owned_files import replace_own

FILE = "up.json"
BYTES_MAX = 1 << 20


class _Content(msgspec.Struct, frozen=True):
    #: Process id of the supervisor.
    pid: int
    #: A sentence for each daemon, by its name.
    flapping: dict[str, str]


def write_flapping(run_dir: Path, flapping: dict[str, str]) -> None:
    """Raises OSError."""
    replace_own(run_dir / FILE, msgspec.json.encode(_Content(os.getpid(), flapping)))


def read_flapping(run_dir: Path) -> dict[str, str]:
    """A sentence for each daemon that keeps dying; empty where no supervisor tells."""
    try:
        with (run_dir / FILE).open("rb") as file:
            content = msgspec.json.decode(file.read(BYTES_MAX), type=_Content)
    except (OSError, msgspec.MsgspecError):
        return {}
    return content.flapping if Path(f"/proc/{content.pid}").exists() else {}
