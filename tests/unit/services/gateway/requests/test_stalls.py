"""A decode worker that stops speaking in the middle of its streams is left after a second."""

from __future__ import annotations

from typing import Any

import pytest

from common.messages import Delta, Fleet, Sampling, Submit
from services.gateway.requests.events import FromRouter, Stepped, Tick, ToRouter
from services.gateway.requests.stalls import StallDetector
from tests.unit.services.gateway.gate import D0, D1, Gate, sent

PAUSE = 0.01


def fleet(decode_ready: int) -> FromRouter:
    ready = bool(decode_ready)
    return FromRouter(
        Fleet(ready=ready, prefill_ready=1, decode_ready=decode_ready, max_model_len=512)
    )


def streaming(decode_ready: int = 3, **limits: Any) -> Gate:
    """One stream on d0 that has said `ab`."""
    gate = Gate(recovery=True, **limits)
    gate.do(fleet(decode_ready))
    gate.open()
    gate.place()
    gate.token("ab")
    return gate


def pass_time(gate: Gate, seconds: float) -> list[object]:
    """Ticks as the daemon's; what left the process meanwhile."""
    actions = []
    for _ in range(round(seconds / 0.1)):
        gate.now += 0.1
        actions += gate.do(Tick())
    return sent(actions)


def test_a_stream_leaves_a_silent_worker_and_says_which() -> None:
    gate = streaming()
    assert pass_time(gate, 1.0) == []
    gate.now += 0.1
    actions = gate.do(Tick())
    assert sent(actions) == [(D0, "Abort"), "Submit"]
    (submit,) = [a.message for a in actions if isinstance(a, ToRouter)]
    assert isinstance(submit, Submit)
    assert (submit.attempt, submit.prompt_tokens, submit.left) == (2, 4, "d0|1")


def test_what_wakes_up_later_is_not_listened_to() -> None:
    gate = streaming()
    pass_time(gate, 1.1)
    before = gate.core.counters.stale
    gate.do(Stepped(D0, [Delta("r", 1, 2, [99])]))
    assert gate.core.counters.stale == before + 1
    gate.do(Stepped(D1, [Delta("r", 2, 0, [100], "length")]))
    assert bytes(gate.answers["r"].token_ids) == b"abd"
    assert gate.answers["r"].error is None


@pytest.mark.parametrize("ready", [0, 1])
def test_with_nobody_else_to_go_to_it_is_waited_for(ready: int) -> None:
    assert pass_time(streaming(ready), 5.0) == []


def test_a_gateway_without_recovery_waits() -> None:
    gate = Gate(recovery=False)
    gate.do(fleet(3))
    gate.open()
    gate.place()
    gate.token("ab")
    assert pass_time(gate, 5.0) == []


def test_what_cannot_go_on_exactly_elsewhere_waits() -> None:
    gate = streaming()
    request = gate.core.lifecycle.table.requests["r"]
    object.__setattr__(request.spec, "sampling", Sampling(max_tokens=50, bad_words=("x",)))
    assert pass_time(gate, 5.0) == []


def rows(stalls: StallDetector, *workers: bytes, pause: float = PAUSE) -> float:
    """Each spoke 100 times, `pause` seconds apart; returns when they spoke last."""
    now = 0.0
    for _ in range(100):
        now += pause
        for worker in workers:
            stalls.record(worker, now)
        stalls.stalled(workers, 9, now)
    return now


@pytest.mark.parametrize(("pause", "limit"), [(0.01, 1.0), (0.3, 3.0)])
def test_slow_steps_earn_patience(pause: float, limit: float) -> None:
    stalls = StallDetector()
    now = rows(stalls, D0, pause=pause)
    silent_after = 0.0
    while not stalls.stalled([D0], 3, now + silent_after):
        silent_after += 0.05
    assert limit <= silent_after <= limit + 0.1


def test_when_many_fall_silent_at_once_none_is_blamed() -> None:
    stalls = StallDetector()
    now = rows(stalls, D0, D1)
    for tenth in range(30):
        assert stalls.stalled([D0, D1], 3, now + tenth / 10) == []


def test_a_gateway_that_stood_still_blames_nobody() -> None:
    stalls = StallDetector()
    now = rows(stalls, D0)
    assert stalls.stalled([D0], 3, now + 5.0, late=True) == []
    assert stalls.stalled([D0], 3, now + 5.1) == []
    assert [worker for worker, _ in stalls.stalled([D0], 3, now + 6.1)] == [D0]


def test_what_comes_late_of_a_stream_that_is_over_is_no_pause_of_the_next() -> None:
    gate = streaming()
    gate.do(Stepped(D0, [Delta("r", 1, 2, [99], "length")]))
    gate.do(Tick())
    gate.do(Stepped(D0, [Delta("r", 1, 3, [99])]))
    assert gate.core._stalls._last_tokens == {}


def test_a_worker_between_two_streams_is_not_silent() -> None:
    stalls = StallDetector()
    now = rows(stalls, D0)
    for tenth in range(50):
        stalls.stalled([], 3, now + tenth / 10)
    stalls.record(D0, now + 5)
    assert stalls.stalled([D0], 3, now + 5.1) == []
    assert stalls._pauses[D0].p99_ms() == pytest.approx(PAUSE * 1000)
