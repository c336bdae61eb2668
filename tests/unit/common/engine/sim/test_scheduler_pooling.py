"""The simulated engine as one of a pooling model."""

from __future__ import annotations

import numpy as np
import pytest

from common.config import SimConfig
from common.engine.port import EngineRequest, Output
from common.engine.sim.model import DIMENSIONS, SimKv, pooled_numbers
from common.engine.sim.scheduler import SimCore
from common.kv.layout import Geometry, HostMemory
from common.messages import Pooling, Role, Sampling

EMBED, CLASSIFY = Pooling(task="embed"), Pooling(task="classify")


def numbers(prompt: list[int], pooling: Pooling = EMBED) -> np.ndarray:
    return np.frombuffer(pooled_numbers(prompt, pooling), "<f4")


def test_a_vector_depends_on_the_prompt_alone() -> None:
    assert numbers([1, 2, 3]).tolist() == numbers([1, 2, 3]).tolist()
    assert numbers([1, 2, 3]).tolist() != numbers([1, 2, 4]).tolist()
    assert np.linalg.norm(numbers([1, 2, 3])) == pytest.approx(1, abs=1e-6)
    assert len(numbers([1])) == DIMENSIONS
    assert len(numbers([1], Pooling(task="embed", dimensions=8))) == 8


def test_a_score_is_one_number_from_0_to_1() -> None:
    (score,) = numbers([1, 2, 3], CLASSIFY)
    assert 0 <= score <= 1


def test_a_prompt_ends_with_its_prefill_and_gives_its_blocks_back() -> None:
    memory = HostMemory(np.zeros(8 * 64, np.uint8), Geometry(1, 8, 64, 8 * 64, 64))
    core = SimCore(SimConfig(), SimKv(memory, 4), 4, max_seqs=4, max_tokens=6)
    core.add(
        EngineRequest("r", 1, Role.DECODE, list(range(9)), Sampling(max_tokens=0), pooling=EMBED)
    )
    core.admit()
    outputs: list[Output] = []
    while core.plan_step():
        made, grown = core.finish_step()
        outputs += made
        assert grown == []
        core.check_invariants()
    (output,) = outputs
    assert (output.token_ids, output.finish_reason) == ([], "stop")
    assert output.pooled == pooled_numbers(list(range(9)), EMBED)
    assert core.kv_used == 0
