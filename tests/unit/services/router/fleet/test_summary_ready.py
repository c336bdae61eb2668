"""Who can serve is answered in one place: placement, the summary for gateways and `status` agree,
and what cannot be served is refused with a reason and a time to come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from common.config import AdmissionConfig, LivenessConfig
from common.messages import Beat, Fleet, HealthVerdict, Load, Placed, Refused
from services.router.admin.verb import View
from services.router.admin.verbs import status
from services.router.events import WorkerDrained
from tests.unit.services.router.rig import Rig, standard

DOWN = HealthVerdict(down=True, reason="no answer")


def drain(rig: Rig, peer: str) -> None:
    rig.handle(WorkerDrained(peer, on=True))


def suspect(rig: Rig, peer: str) -> None:
    """Every other peer is alive."""
    others = [name for name in rig.core.tables.workers if name != peer]
    while rig.row(peer).state.value == "ready":
        rig.tick(0.2, alive=("g0|1", *others))


def exclude(rig: Rig, peer: str) -> None:
    rig.receive(peer, Beat(load=Load(), health_verdict=DOWN))


def two(**settings: Any) -> Rig:
    rig = standard(**settings)
    rig.decode("d1")
    rig.sent.clear()
    return rig


def told(rig: Rig) -> Fleet:
    """What the gateway was sent last; `status` says the same."""
    fleet = rig.take(Fleet, "g0|1")[-1]
    shown = status.run(View(rig.core.shared, rig.now, {}), {})
    assert (shown.ready, shown.reason) == (fleet.ready, fleet.reason)
    assert (shown.decode_ready, shown.prefill_ready) == (fleet.decode_ready, fleet.prefill_ready)
    return fleet


@pytest.mark.parametrize(
    ("take_d0", "take_d1", "reason"),
    [
        (drain, drain, "2 drained"),
        (drain, suspect, "1 drained, 1 suspect"),
        (suspect, drain, "1 drained, 1 suspect"),
        (drain, Rig.leave, "1 drained, 1 draining"),
        (Rig.leave, Rig.gone, "1 draining, 1 gone"),
        (exclude, drain, "1 down, 1 drained"),
    ],
)
def test_a_fleet_of_which_nobody_can_serve_says_so_and_why(
    take_d0: Callable[[Rig, str], None], take_d1: Callable[[Rig, str], None], reason: str
) -> None:
    rig = two(liveness=LivenessConfig(eject_share_max=0.0))
    take_d0(rig, "d0|1")
    rig.submit("r1")
    assert [p.decode for p in rig.take(Placed)] == ["d1"], "the other one still serves"
    assert rig.core.tables.fleet.ready
    take_d1(rig, "d1|1")
    fleet = told(rig)
    assert not fleet.ready
    assert fleet.decode_ready == 0
    assert fleet.reason == f"no decode worker is ready: {reason}"


def test_without_a_decode_worker_to_serve_requests_wait_a_moment_and_then_are_refused() -> None:
    rig = standard(admission=AdmissionConfig(no_decode_wait_ms=3_000.0))
    drain(rig, "d0|1")
    rig.submit("r1")
    rig.tick(2.8, alive=("g0|1", "d0|1", "p0|1"))
    assert not rig.take(Refused)
    rig.receive("d0|1", Beat(load=Load(), drained=True))
    rig.tick(0.4, alive=("g0|1", "p0|1"))
    rig.submit("r2")
    refused = rig.take(Refused, "g0|1")
    assert [(r.request_id, r.code) for r in refused] == [
        ("r1", "no_capacity"),
        ("r2", "no_capacity"),
    ]
    assert all(r.retry_after_ms >= 3_000 for r in refused)


def test_a_resumed_worker_serves_at_once() -> None:
    rig = standard()
    drain(rig, "d0|1")
    rig.submit("r1")
    rig.handle(WorkerDrained("d0|1", on=False))
    assert told(rig).ready
    assert rig.state("r1") == "placed"


def test_a_drained_prefill_worker_is_not_counted_and_nobody_waits_for_it() -> None:
    rig = standard()
    drain(rig, "p0|1")
    fleet = told(rig)
    assert fleet.ready, "decode workers compute prompts themselves"
    assert fleet.prefill_ready == 0
    rig.submit("r1", prompt=400)
    assert [p.prefill for p in rig.take(Placed)] == [""]


def test_no_request_waits_in_the_queue_for_longer_than_its_bound() -> None:
    rig = standard(max_active=1, admission=AdmissionConfig(queue_ms_max=20_000.0))
    everybody = ("g0|1", "d0|1", "p0|1")
    rig.submit("r1")
    rig.submit("r2")
    rig.tick(10.0, alive=everybody)
    rig.submit("r3")
    rig.tick(9.8, alive=everybody)
    rig.submit("r2")
    assert not rig.take(Refused)
    rig.tick(0.4, alive=everybody)
    (refused,) = rig.take(Refused)
    assert (refused.request_id, refused.code) == ("r2", "overloaded")
    assert refused.message == (
        "it was not placed after 20 s in the queue: it waits for a free decode slot"
    )
    assert refused.retry_after_ms
    rig.tick(10.0, alive=everybody)
    (refused,) = rig.take(Refused)
    assert refused.request_id == "r3"
    assert rig.state("r1") == "placed"
