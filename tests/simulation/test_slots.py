"""Worlds in which decode workers are short of slots, so that prompts begin ahead of them: every
promise holds, and no worker declines what its router begins."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import campaign

SEEDS = 300


@pytest.mark.timeout(300)
def test_every_promise_holds_where_prompts_begin_ahead_of_their_slots() -> None:
    sums = campaign(SEEDS, first=20_000, slots=True)
    failures = "\n".join(f"seed {seed}: {sentence}" for seed, sentence in sums.failures[:20])
    assert not sums.failed, f"{sums.failed} of {SEEDS} seeds\n{failures}"
    assert sums.ahead > SEEDS
    assert sums.ends["finished"] > 10 * SEEDS
