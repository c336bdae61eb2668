"""A hook for workers, as an operator would write one: it starts decode workers of a fleet file that
are not here, and stops the one that it is told to. Each call is kept in a folder, one file each.

    python -m tests.rigs.scale_hook FILE FOLDER [hang|lie|fail|twice]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from tests.rigs.processes import BATON


def main(file: Path, folder: Path, how: str = "") -> int:
    told = json.load(sys.stdin)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as kept:
        json.dump(told, kept)
    Path(kept.name).rename(f"{kept.name}.json")  # whoever looks finds whole files only
    if how == "hang":
        signal.pause()
    if how == "lie":
        return 0
    if how == "fail":
        print("there is no room", file=sys.stderr)
        return 3
    return _stop(folder, told) if told["direction"] == "in" else _start(file, folder, told, how)


def _start(file: Path, folder: Path, told: dict[str, Any], how: str) -> int:
    tables = tomllib.loads(file.read_text())[told["role"]]
    free = [name for name in tables if name not in told["workers"]]
    for name in free[: told["count"] * (2 if how == "twice" else 1)]:
        with (folder / f"{name}.log").open("ab") as log:
            words = (*BATON, told["role"], "--config", str(file), "--name", name)
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (folder / f"{name}.pid").write_text(str(process.pid))
        print(f"started {name}")
    return 0


def _stop(folder: Path, told: dict[str, Any]) -> int:
    os.kill(int((folder / f"{told['worker']}.pid").read_text()), signal.SIGTERM)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
