"""Worlds in which decode workers are not equally fast and tokens are to come in time, so that some
workers have fewer streams than slots, and some the lowest class alone: every promise holds."""

from __future__ import annotations

import pytest

from services.router.records.worker import Worker
from tests.simulation.campaign import campaign
from tests.simulation.world.world import World

SEEDS, WATCHED = 300, 40


@pytest.mark.timeout(300)
def test_every_promise_holds_where_workers_are_not_equally_fast() -> None:
    sums = campaign(SEEDS, first=30_000, paces=True)
    failures = "\n".join(f"seed {seed}: {sentence}" for seed, sentence in sums.failures[:20])
    assert not sums.failed, f"{sums.failed} of {SEEDS} seeds\n{failures}"
    assert sums.ends["finished"] > 10 * SEEDS


def test_some_of_their_workers_are_too_slow_and_some_have_fewer_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_slots, seen = Worker.set_slots, {"patient": 0, "fewer": 0}

    def watched(self: Worker, slots: int, *, patient: bool = False) -> None:
        seen["patient"] += patient
        seen["fewer"] += slots < self.capacity.max_num_seqs and self.ramp_from is None
        set_slots(self, slots, patient=patient)

    monkeypatch.setattr(Worker, "set_slots", watched)
    for seed in range(WATCHED):
        World(seed, paces=True).run()
    assert min(seen.values()) > WATCHED, seen
