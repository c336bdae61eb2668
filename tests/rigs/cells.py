"""The cells of a `baton up --cells` fleet: what they run, and how one is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import psutil

from tests.rigs.fleet import Fleet

CELLS = ("c0", "c1")
WHOLE = ("router", "prefill", "decode")


def of_cell(running: Fleet, cell: str, roles: Collection[str] = WHOLE) -> list[psutil.Process]:
    """The daemons of these roles in a cell other than the first."""
    mine = str(running.run_dir / cell / "fleet.toml")
    found = []
    for child in psutil.Process(running.process.pid).children():
        with suppress(psutil.Error):  # it has just died
            line = child.cmdline()
            if mine in line and not set(roles).isdisjoint(line):
                found.append(child)
    return found


def kill(running: Fleet, cell: str, roles: Collection[str] = WHOLE) -> int:
    """Returns how many daemons it killed."""
    killed = 0
    for process in of_cell(running, cell, roles):
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
            killed += 1
    return killed


async def keep_down(
    running: Fleet, cell: str, seconds: float, roles: Collection[str] = WHOLE
) -> None:
    """Kills what is there, and what is started again."""
    ends = time.monotonic() + seconds
    assert kill(running, cell, roles), f"{cell} runs none of {roles}"
    while time.monotonic() < ends:
        kill(running, cell, roles)
        await asyncio.sleep(0.05)


def requests_of(running: Fleet, cell: str) -> set[str]:
    """The ids of what its router has."""
    return {row["request_id"] for row in running.ctl("requests", "--cell", cell)}


def logged(running: Fleet, event: str) -> list[dict[str, Any]]:
    """What the gateway logged of it."""
    lines = running.log("g0").splitlines()
    return [json.loads(line) for line in lines if f'"{event}"' in line]
