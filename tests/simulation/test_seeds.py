"""Thousands of seeds, and that a seed means the same everywhere and always."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import commit
from tests.simulation.campaign import campaign
from tests.simulation.world.faults import WEATHERS
from tests.simulation.world.models import MODELS
from tests.simulation.world.world import World

SEEDS = 2_000
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_every_promise_holds_under_every_seed() -> None:
    sums = campaign(SEEDS)
    failures = "\n".join(f"seed {seed}: {sentence}" for seed, sentence in sums.failures[:20])
    assert not sums.failed, f"{sums.failed} of {SEEDS} seeds, {commit()}\n{failures}"
    assert sums.seeds == SEEDS
    assert 1.0 < sums.amplification <= 1.1, "streams move, and no more than the budget allows"
    _did_real_work(dict(sums.ends), dict(sums.faults))
    reasons = ("operator", "drain", "evict", "room")
    assert all(sums.moved[f"{reason} moved"] for reason in reasons), sums.moved
    assert sums.moved["room parked"]
    assert sums.copied, "streams are copied ahead of their moves"
    assert set(sums.weathers) == set(WEATHERS)
    assert set(sums.models) == set(MODELS)


def _did_real_work(ends: dict[str, int], faults: dict[str, int]) -> None:
    """Guards against worlds in which nothing happens."""
    assert ends["finished"] > 20 * SEEDS
    for end in ("left", "queue_full", "overloaded", "deadline_exceeded"):
        assert ends[end] > SEEDS / 50, end
    kinds = {kind for weather in WEATHERS.values() for kind in weather}
    assert set(faults) == kinds
    assert min(faults.values()) > SEEDS / 20


def test_a_seed_replays_to_the_same_hash_in_any_process() -> None:
    """Whatever the process's hash seed: nothing is ordered by a set."""
    seeds = (7, 8, 22)
    program = (
        "from tests.simulation.world.world import World\n"
        f"print(*[World(seed).run().hash for seed in {seeds}])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    here = " ".join(World(seed).run().hash for seed in seeds)
    assert told == {here}
    assert len(set(here.split())) == len(seeds)


def test_a_trace_tells_what_happened_and_changes_nothing() -> None:
    quiet, told = World(22), World(22, trace=True)
    assert quiet.run() == told.run()
    assert not quiet.lines
    said = "\n".join(told.lines)
    for part in ("start r0|1", "fault: ", " > r0 Submit g", "Tokens", "finished"):
        assert part in said, part


def test_an_interrupted_campaign_keeps_what_was_done() -> None:
    def interrupt(sums: object) -> None:
        raise KeyboardInterrupt

    sums = campaign(100_000, first=1_000, jobs=1, progress=interrupt)
    assert 0 < sums.seeds < 1_000
    assert sums.requests > sums.seeds


def test_the_real_encoding_changes_nothing() -> None:
    """One seed in twenty encodes and decodes every message; any seed could."""
    plain, wired = World(22), World(22)
    plain.network.wire, wired.network.wire = False, True
    assert plain.run() == wired.run()
