"""What a worker computes in each phase, counted where the engine is told and answers."""

from __future__ import annotations

from typing import Any

import pytest

from common.engine.port import Batch, Drafts, EngineRequest, Output
from common.messages import Role, Sampling
from common.worker.gpu import GpuReading
from common.worker.phases import PhaseMeter
from tests.rigs.messages import ticket


def request(request_id: str, prompt: int = 100, role: Role = Role.DECODE, **more: Any) -> Any:
    return EngineRequest(request_id, 1, role, list(range(prompt)), Sampling(max_tokens=8), **more)


def output(request_id: str, tokens: int = 1, **more: Any) -> Output:
    return Output(f"{request_id}#1", [7] * tokens, **more)


@pytest.fixture
def meter() -> PhaseMeter:
    return PhaseMeter(100.0)


def test_a_prompt_counts_once_without_what_was_cached(meter: PhaseMeter) -> None:
    meter.added(request("r"))
    meter.stepped(Batch([output("r", cached_tokens=60)]))
    meter.stepped(Batch([output("r"), output("other")]))
    assert (meter.prefilled, meter.decoded) == (40, 3)
    meter.check_invariants()


def test_the_one_token_of_a_prefill_worker_is_no_decode(meter: PhaseMeter) -> None:
    meter.added(request("r", role=Role.PREFILL, ticket=ticket("r")))
    meter.stepped(Batch([output("r")]))
    assert (meter.prefilled, meter.decoded) == (100, 0)
    assert meter.report(101.0, sent=3, gpu=None).handoffs == 3


def test_a_step_of_a_mixed_worker_counts_in_both_phases(meter: PhaseMeter) -> None:
    meter.added(request("p", role=Role.PREFILL, ticket=ticket("p")))
    meter.stepped(Batch([output("p"), output("a", 2), output("b", 2)]))
    assert (meter.prefilled, meter.decoded) == (100, 4)
    report = meter.report(101.0, sent=0, gpu=None)
    assert (report.batch, report.tokens_per_output) == (2.0, 2.0)


def test_a_prompt_that_failed_or_was_aborted_was_not_computed(meter: PhaseMeter) -> None:
    for name in ("failed", "aborted"):
        meter.added(request(name, ticket=ticket(name)))
    assert meter.report(100.5, sent=0, gpu=None).handoffs == 2
    meter.stepped(Batch([output("failed", tokens=0, error="internal")]))
    meter.dropped("aborted#1")
    meter.dropped("aborted#1")
    assert meter.prefilled == 0
    assert meter.report(101.0, sent=0, gpu=None).handoffs == 0
    meter.check_invariants()


def test_rates_are_those_of_the_last_ten_seconds(meter: PhaseMeter) -> None:
    report = meter.report(100.0, sent=0, gpu=None)
    for second in range(60):
        now = 100.0 + second / 2
        if second < 30:
            meter.stepped(Batch([output("a", 4), output("b", 4)]))
        report = meter.report(now, sent=0, gpu=None)
        if second == 29:
            assert report.decode_tokens_per_s == pytest.approx(16.0, rel=0.1)
            assert report.batch == 2.0
    assert (report.decode_tokens_per_s, report.batch) == (0.0, 0.0)


def test_gpus_are_told_where_there_are_some(meter: PhaseMeter) -> None:
    assert meter.report(101.0, 0, None).gpu_busy == -1.0
    report = meter.report(102.0, 0, GpuReading(0.75, 0.5))
    assert (report.gpu_busy, report.gpu_memory_busy) == (0.75, 0.5)


def test_drafts_are_counted_by_position_and_their_share_is_that_of_the_last_ten_seconds(
    meter: PhaseMeter,
) -> None:
    assert meter.report(100.0, sent=0, gpu=None).accepted == -1
    meter.stepped(Batch([output("r", 3)], drafts=Drafts((2, 2), (2, 1))))
    meter.stepped(Batch([output("r", 1)], drafts=Drafts((1, 1, 1), (0, 0, 0))))
    meter.stepped(Batch([output("r", 1)]))
    assert (meter.drafted, meter.accepted) == ([3, 3, 1], [2, 1, 0])
    report = meter.report(101.0, sent=0, gpu=None)
    assert report.accepted == pytest.approx(3 / 7)
    assert report.tokens_per_output == pytest.approx(5 / 3)
    assert report.decode_tokens_per_s == pytest.approx(5)
    later = meter.report(120.0, sent=0, gpu=None)
    assert (later.accepted, later.tokens_per_output) == (-1, 0)
