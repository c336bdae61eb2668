"""Where the time went, by the router's own timelines of some requests (`baton ctl explain`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.admin import ask
from common.config import Config, FleetConfig
from common.endpoints import admin_address
from common.errors import BatonError
from loadtest.bench.figures import Spread, spread
from loadtest.bench.samples import Sample

ASKED_MAX = 200
ORDER = ("queue", "prefill", "kv transfer", "first token", "decode")


def router_of(run_dir: Path) -> str:
    """The admin address of a fleet on this host."""
    return admin_address(Config(fleet=FleetConfig(run_dir=str(run_dir))))


async def phases(address: str, samples: Sequence[Sample]) -> dict[str, Spread]:
    """Milliseconds by phase of up to ASKED_MAX requests that ended well, the latest ones, which the
    router still remembers. Empty where no router answers."""
    known = [each.request_id for each in samples if each.ok and each.request_id][-ASKED_MAX:]
    found: dict[str, list[float]] = {}
    for request_id in known:
        try:
            answer = await ask(address, "explain", {"id": request_id})
        except BatonError:
            break
        if answer.ok:
            for name, value in of_attempt(answer.result["attempts"][-1]).items():
                found.setdefault(name, []).append(value)
    return {name: spread(found[name]) for name in ORDER if name in found}


def of_attempt(attempt: dict[str, Any]) -> dict[str, float]:
    """`first token` runs from the placement and contains prefill and transfer."""
    told = {
        each["phase"].replace("_", " "): each["end_ms"] - each["start_ms"]
        for each in attempt["phases"]
        if each["end_ms"] is not None
    }
    if attempt["kv"] is not None:
        told["kv transfer"] = attempt["kv"]["transfer_ms"]
    return told
