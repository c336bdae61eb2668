"""Who says nothing is asked; who does not answer is lost; who was not looked at is not blamed."""

from __future__ import annotations

import pytest

from common.kv.pulse import ASK_SECONDS, LATE_LOOK_SECONDS, Look, Pulse

TICK = 0.05
ANSWER_SECONDS = 0.75


def looks(pulse: Pulse, seconds: float, *, start: float = 0.0) -> list[tuple[float, Look]]:
    """What is found at every tick of silence, besides WELL."""
    found: list[tuple[float, Look]] = []
    for tick in range(1, round(seconds / TICK) + 1):
        now = start + tick * TICK
        look = pulse.look(now, spoke=False)
        if look is not Look.WELL:
            found.append((now, look))
    return found


def test_silence_is_asked_about_once_and_then_it_is_a_loss() -> None:
    (asked_at, asked), (lost_at, lost) = looks(Pulse(0.0, ANSWER_SECONDS), 1.1)[:2]
    assert (asked, lost) == (Look.ASK, Look.LOST)
    assert asked_at == pytest.approx(ASK_SECONDS, abs=TICK)
    assert lost_at == pytest.approx(ASK_SECONDS + ANSWER_SECONDS, abs=2 * TICK)


def test_an_answer_begins_it_anew() -> None:
    pulse = Pulse(0.0, ANSWER_SECONDS)
    assert [look for _, look in looks(pulse, 0.9)] == [Look.ASK]
    assert pulse.look(0.95, spoke=True) is Look.WELL
    assert [look for _, look in looks(pulse, 0.9, start=0.95)] == [Look.ASK]


def test_a_side_that_did_not_look_blames_nobody() -> None:
    pulse = Pulse(0.0, ANSWER_SECONDS)
    looks(pulse, 0.5)
    assert pulse.look(0.5 + LATE_LOOK_SECONDS + 5.0, spoke=False) is Look.WELL
