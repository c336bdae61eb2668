"""Phases of sampled requests, from the router's timelines (`baton ctl explain`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.config import Config, FleetConfig
from common.errors import BatonError
from common.net.admin_client import ask
from common.net.endpoints import admin_address
from common.telemetry.timeline import AttemptRecord
from loadtest.bench.figures import Spread, spread
from loadtest.bench.sample import Sample

ASKED_MAX = 200
ORDER = ("queue", "prefill", "kv transfer", "first token", "decode")


def router_of(run_dir: Path) -> str:
    """The admin address of a fleet on this host."""
    return admin_address(Config(fleet=FleetConfig(run_dir=str(run_dir))))


async def phases(address: str, samples: Sequence[Sample]) -> dict[str, Spread]:
    """Milliseconds by phase of up to ASKED_MAX requests that ended well, the latest ones, which the
    router still remembers. Empty where no router answers."""
    known = [sample.request_id for sample in samples if sample.ok and sample.request_id][
        -ASKED_MAX:
    ]
    found: dict[str, list[float]] = {}
    for request_id in known:
        try:
            answer = await ask(address, "explain", {"id": request_id})
        except BatonError:
            break
        if answer.ok:
            last = msgspec.convert(answer.result["attempts"][-1], AttemptRecord)
            for name, value in of_attempt(last).items():
                found.setdefault(name, []).append(value)
    return {name: spread(found[name]) for name in ORDER if name in found}


def of_attempt(attempt: AttemptRecord) -> dict[str, float]:
    """`first token` runs from the placement and contains prefill and transfer."""
    elapsed_ms = {
        phase.phase.replace("_", " "): phase.end_ms - phase.start_ms
        for phase in attempt.phases
        if phase.end_ms is not None
    }
    if attempt.kv is not None:
        elapsed_ms["kv transfer"] = attempt.kv.transfer_ms
    return elapsed_ms
