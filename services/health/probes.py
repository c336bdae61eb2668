"""What the health daemon measures on its host, and of the router, each round.

Limits are shares of the whole (0 to 1), or seconds for the router's silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil

from common.admin import ask
from common.errors import BatonError
from services.health.verdict import Probe

MEMORY_DEGRADED, MEMORY_DOWN = 0.90, 0.97
DISK_DEGRADED, DISK_DOWN = 0.90, 0.98
ROUTER_SECONDS = 1.0


def host_probes(run_dir: Path) -> list[Probe]:
    """Memory of the host and disk under the run directory."""
    memory = psutil.virtual_memory()
    disk = psutil.disk_usage(str(run_dir))
    used = 1.0 - memory.available / memory.total
    full = disk.percent / 100
    return [
        Probe("memory_used", used, MEMORY_DEGRADED, MEMORY_DOWN, f"{used:.0%} of memory is in use"),
        Probe(
            "disk_used", full, DISK_DEGRADED, DISK_DOWN, f"the disk of {run_dir} is {full:.0%} full"
        ),
    ]


async def router_kv(admin: str) -> dict[str, Any] | None:
    """The router's `kv` answer without the single holds; None when it does not answer."""
    return await _answer(admin, "kv", {"limit": 0})


async def router_status(admin: str) -> dict[str, Any] | None:
    """None when it does not answer."""
    return await _answer(admin, "status", {})


def router_probe(status: dict[str, Any] | None) -> Probe:
    """1 when the router did not answer its admin socket, else 0."""
    silent = 1.0 if status is None else 0.0
    sentence = f"the router does not answer within {ROUTER_SECONDS:g} s; is it running?"
    return Probe("router_silent", silent, 0.5, 2.0, sentence)


async def _answer(admin: str, verb: str, args: dict[str, Any]) -> dict[str, Any] | None:
    try:
        answer = await ask(admin, verb, args, seconds=ROUTER_SECONDS)
    except BatonError:
        return None
    return answer.result if answer.ok and isinstance(answer.result, dict) else None
