"""What the load of both phases says, in words."""

from __future__ import annotations

import pytest

from services.router.fleet.balance.hint import PhaseLoad, figures, hint


def load(busy: float, workers: int = 2, gpu: float = -1.0) -> PhaseLoad:
    return PhaseLoad(workers, busy, 1_200.0, 4.5, gpu, gpu / 2)


@pytest.mark.parametrize(
    ("prefill", "decode", "waiting", "said"),
    [
        (load(0.9), load(0.2), 3, "prefill holds decode up, and 3 requests wait"),
        (load(0.2), load(0.9), 0, "decode holds prefill up: one more worker should decode"),
        (load(0.9), load(0.9), 4, "all workers are busy, and 4 requests wait: start more"),
        (load(0.0, 0), load(0.9), 0, "all workers are busy: start more"),
        (load(0.5), load(0.5), 2, "2 requests wait, though no phase is full"),
        (load(0.1), load(0.1), 0, "both phases have room to spare"),
        (load(0.5), load(0.6), 0, "the phases are in balance"),
        (load(0.5), load(0.0, 0), 0, "no decode worker is ready"),
    ],
)
def test_a_hint(prefill: PhaseLoad, decode: PhaseLoad, waiting: int, said: str) -> None:
    assert hint(prefill, decode, waiting).startswith(said)


def test_figures() -> None:
    told = figures(load(0.5, gpu=0.8), load(0.25), 3)
    assert told == (
        "prefill 1200 tokens/s, 50% busy, GPU 80%, its memory 40%; decode 1200 tokens/s in batches "
        "of 4.5, 25% of slots; 3 handoffs in flight"
    )
    assert figures(load(0.0, 0), load(0.25), 0).startswith("decode 1200 tokens/s")
