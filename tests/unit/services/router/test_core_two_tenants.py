"""Two tenants of weights 4 and 1, 320 requests each at once, through the whole core."""

from __future__ import annotations

import pytest

from common.messages import KeyLimits, Placed
from tests.unit.services.router.rig import Rig, standard

REQUESTS = 320


def served(rig: Rig) -> list[str]:
    """Tenants in the order in which their requests were placed; each runs until those before it
    ended."""
    order = []
    while placed := rig.take(Placed):
        order += [message.request_id.partition("-")[0] for message in placed]
        for message in placed:
            rig.ended(message.request_id)
    return order


def submit_all(rig: Rig, first: str) -> None:
    """One tenant's requests before the other's: who comes first must not matter."""
    tenants = ["heavy", "light"] if first == "heavy" else ["light", "heavy"]
    for tenant in tenants:
        limits = KeyLimits(weight=4.0 if tenant == "heavy" else 1.0)
        for i in range(REQUESTS):
            rig.submit(f"{tenant}-{i}", prompt=12, tenant=tenant, limits=limits)


@pytest.mark.parametrize("first", ["heavy", "light"])
def test_both_are_served_by_weight(first: str) -> None:
    rig = standard(max_queue=1000)
    submit_all(rig, first)
    order = served(rig)
    assert len(order) == 2 * REQUESTS
    early = order[:REQUESTS]
    assert early.count("heavy") >= 240
    assert early.count("light") >= 48
    drained = max(at for at, tenant in enumerate(order) if tenant == "heavy")
    assert 220 <= order[drained:].count("light") <= 260
