"""A sample of the hostile bodies of `make hostile`, beside a healthy stream."""

from __future__ import annotations

import pytest

from tests.hostile.attack import RSS_BYTES_MAX, attack, report
from tests.hostile.bodies import KNOWN, POOLING, HostileBody, by_field

SAMPLE = 12


def sample() -> list[HostileBody]:
    """What once stopped a gateway, and some of the others from all over."""
    others = list(by_field())
    return KNOWN + POOLING + others[:: len(others) // SAMPLE]


@pytest.mark.timeout(300)
def test_no_body_stops_a_stream_or_the_gateway() -> None:
    with attack() as running:
        outcomes = [running.send(body) for body in sample()]
        grown, same = running.grown_bytes, running.is_the_same_process
    print(report(outcomes, grown))
    assert [(outcome.body.name, outcome.harm) for outcome in outcomes if outcome.harm] == []
    assert same
    assert grown < RSS_BYTES_MAX
