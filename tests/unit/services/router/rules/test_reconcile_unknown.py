"""A request that a gateway waits for, and that no router and no worker knows any more, is failed,
so that the gateway submits it again: an earlier router dropped it while the gateway was silent."""

from __future__ import annotations

from common.errors import Code
from common.messages import Failed, Live, Role
from services.router.rules.reconcile import REPORTED_SECONDS, UNKNOWN_SECONDS
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.rules.test_reconcile import REBUILD, held, reports, returns

ALIVE = ("p0|1", "d0|1", "g0|1")


def restarted(*, missing: bool = False) -> Rig:
    """A router that has just started, its workers, which hold nothing, and a gateway that waits for
    `r1`."""
    rig = Rig(**REBUILD)
    if not missing:
        returns(rig, Role.PREFILL, "p0")
    returns(rig, Role.DECODE, "d0")
    rig.gateway()
    rig.receive("g0|1", Live(attempts=(("r1", 1),)))
    rig.sent.clear()
    return rig


def passes(rig: Rig, seconds: float, *alive: str) -> list[tuple[str, int]]:
    """Who has failed by then."""
    rig.tick(seconds, alive=alive or ALIVE)
    return [(failed.request_id, failed.attempt) for failed in rig.take(Failed, "g0|1")]


def test_its_gateway_is_told_once_when_all_workers_have_reported() -> None:
    rig = restarted()
    assert passes(rig, REPORTED_SECONDS - 0.4) == []
    rig.tick(0.6, alive=ALIVE)
    (failed,) = rig.take(Failed, "g0|1")
    assert (failed.request_id, failed.attempt, failed.code) == ("r1", 1, Code.WORKER_LOST)
    assert "while this gateway was out of reach" in failed.message
    assert passes(rig, 2 * UNKNOWN_SECONDS) == []


def test_workers_that_have_not_reported_are_waited_for_and_not_for_ever() -> None:
    rig = restarted(missing=True)
    assert passes(rig, UNKNOWN_SECONDS - 0.4, *ALIVE[1:]) == []
    assert passes(rig, 0.6, *ALIVE[1:]) == [("r1", 1)]


def test_what_a_worker_reports_meanwhile_is_not_failed() -> None:
    rig = restarted()
    reports(rig, "d0|1", held("r1", started=True, prefill=""))
    assert passes(rig, 2 * UNKNOWN_SECONDS) == []
    assert rig.state("r1") == "decoding"


def test_what_the_gateway_submits_again_is_not_failed() -> None:
    rig = restarted()
    rig.submit("r1")
    assert passes(rig, 2 * UNKNOWN_SECONDS) == []


def test_what_this_router_has_seen_the_end_of_is_not_failed() -> None:
    rig = restarted(missing=True)
    rig.receive("g0|1", Live())
    returns(rig, Role.PREFILL, "p0")
    rig.submit("r1")
    rig.ended("r1")
    rig.receive("g0|1", Live(attempts=(("r1", 1),)))
    assert passes(rig, 2 * UNKNOWN_SECONDS) == []


def test_a_gateway_that_is_out_of_reach_is_told_when_it_is_back() -> None:
    rig = restarted()
    rig.gone("g0|1")
    assert passes(rig, 2 * REPORTED_SECONDS, *ALIVE[:2]) == []
    rig.gateway()
    rig.receive("g0|1", Live(attempts=(("r1", 1),)))
    assert passes(rig, 2 * REPORTED_SECONDS) == [("r1", 1)]
