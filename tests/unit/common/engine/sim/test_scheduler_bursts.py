"""The simulated engine with drafts: the same text, in fewer steps."""

from __future__ import annotations

import numpy as np
import pytest

from common.config import SimConfig
from common.engine.port import EngineRequest, Output
from common.engine.sim.model import SimKv
from common.engine.sim.scheduler import SimCore
from common.kv.layout import Geometry, HostMemory
from common.messages import Role, Sampling


def played(draft_tokens: int, sampling: Sampling) -> tuple[list[Output], SimCore]:
    memory = HostMemory(np.zeros(32 * 64, np.uint8), Geometry(1, 32, 64, 32 * 64, 64))
    kv = SimKv(memory, 4)
    core = SimCore(SimConfig(), kv, 4, max_seqs=4, max_tokens=64, draft_tokens=draft_tokens)
    core.add(EngineRequest("r", 1, Role.DECODE, list(range(9)), sampling))
    core.admit()
    outputs: list[Output] = []
    while core.plan_step():
        outputs += core.finish_step()[0]
        core.check_invariants()
    return outputs, core


def text(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("limit", range(1, 41))
def test_the_text_and_its_end_are_those_without_drafts(limit: int) -> None:
    sampling = Sampling(max_tokens=limit)
    alone, _ = played(0, sampling)
    bursts, core = played(4, sampling)
    assert text(bursts) == text(alone)
    assert [output.finish_reason for output in bursts[:-1]] == [""] * (len(bursts) - 1)
    assert bursts[-1].finish_reason == alone[-1].finish_reason == "length"
    assert core.kv_used == 0


def test_a_stop_token_ends_a_burst_where_it_comes() -> None:
    whole = text(played(0, Sampling(max_tokens=40))[0])
    for stop in sorted(set(whole)):
        sampling = Sampling(max_tokens=40, stop_token_ids=(stop,), min_tokens=5)
        alone, _ = played(0, sampling)
        bursts, _ = played(4, sampling)
        assert text(bursts) == text(alone)
        assert bursts[-1].stop_token == alone[-1].stop_token
        assert bursts[-1].finish_reason == alone[-1].finish_reason


def test_what_was_drafted_and_accepted_is_told_once() -> None:
    outputs, core = played(4, Sampling(max_tokens=40))
    drafts = core.take_drafts()
    assert drafts is not None
    assert drafts.drafted == (len(outputs) - 1,) * 4
    assert list(drafts.accepted) == sorted(drafts.accepted, reverse=True)
    assert max(len(output.token_ids) for output in outputs) == 5
    beyond = sum(drafts.accepted) - (40 - len(outputs))
    assert 0 <= beyond < 4, "more than the last burst was cut"
    assert core.take_drafts() is None
    assert played(0, Sampling(max_tokens=40))[1].take_drafts() is None
