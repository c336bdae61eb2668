"""A silent peer is pinged; one that does not answer is lost; a late check blames nobody."""

from __future__ import annotations

import pytest

from common.kv.peers.keepalive import LATE_CHECK_SECONDS, PING_AFTER_SECONDS, Keepalive, Liveness

TICK = 0.05
ANSWER_SECONDS = 0.75


def checks(
    keepalive: Keepalive, seconds: float, *, start: float = 0.0
) -> list[tuple[float, Liveness]]:
    """The result of a check at every tick of silence, without ALIVE."""
    found: list[tuple[float, Liveness]] = []
    for tick in range(1, round(seconds / TICK) + 1):
        now = start + tick * TICK
        liveness = keepalive.check(now, received=False)
        if liveness is not Liveness.ALIVE:
            found.append((now, liveness))
    return found


def test_a_silent_peer_is_pinged_once_and_then_lost() -> None:
    (pinged_at, pinged), (lost_at, lost) = checks(Keepalive(0.0, ANSWER_SECONDS), 1.1)[:2]
    assert (pinged, lost) == (Liveness.PING, Liveness.LOST)
    assert pinged_at == pytest.approx(PING_AFTER_SECONDS, abs=TICK)
    assert lost_at == pytest.approx(PING_AFTER_SECONDS + ANSWER_SECONDS, abs=2 * TICK)


def test_an_answer_starts_the_silence_anew() -> None:
    keepalive = Keepalive(0.0, ANSWER_SECONDS)
    assert [found for _, found in checks(keepalive, 0.9)] == [Liveness.PING]
    assert keepalive.check(0.95, received=True) is Liveness.ALIVE
    assert [found for _, found in checks(keepalive, 0.9, start=0.95)] == [Liveness.PING]


def test_a_side_that_did_not_check_blames_nobody() -> None:
    keepalive = Keepalive(0.0, ANSWER_SECONDS)
    checks(keepalive, 0.5)
    assert keepalive.check(0.5 + LATE_CHECK_SECONDS + 5.0, received=False) is Liveness.ALIVE
