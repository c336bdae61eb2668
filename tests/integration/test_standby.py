"""Two routers: the one in use dies or stops under load, the other takes over, none is harmed."""

import asyncio
import signal
from collections.abc import Iterator
from functools import partial

import psutil
import pytest

from tests.integration.test_router_loss import SIM, SLOW, under_load, until
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.load import Load

pytestmark = pytest.mark.timeout(240)
PAIR = (*SIM, "--routers", "2")


def used(running: Fleet) -> str:
    """The router that the gateway says it uses."""
    lines = [line for line in running.log("g0").splitlines() if '"router.used"' in line]
    return "r1" if '"router": "r1"' in lines[-1] else "r0"


def placed(running: Fleet, router: str) -> int:
    count: int = running.ctl("status", "--router", router)["totals"]["placed"]
    return count


def settled(running: Fleet, router: str) -> bool:
    workers = running.ctl("workers", "--router", router)
    return not running.ctl("requests", "--router", router) and all(
        worker["kv_tokens_promised"] == 0 for worker in workers
    )


def socket_of(router: str) -> str:
    return {"r0": "main", "r1": "r1"}[router]


def knows_all(running: Fleet, router: str) -> bool:
    """False also while nobody answers."""
    try:
        workers = running.ctl("workers", "--router", router)
    except AssertionError:
        return False
    return [worker["state"] for worker in workers] == ["ready"] * 4


@pytest.fixture(scope="module")
def pair() -> Iterator[Fleet]:
    """The killed router is started again, so the second test finds two as the first did."""
    with fleet(*PAIR, env=SLOW) as running:
        yield running.wait_ready()


def test_a_killed_router_is_followed_by_the_other_within_two_seconds(pair: Fleet) -> None:
    active = used(pair)
    other = "r1" if active == "r0" else "r0"
    first_pid = pair.children()[other].pid

    async def kill(load: Load) -> None:
        known = pair.ctl("requests", "--router", socket_of(other))
        assert len(known) >= 8, "the standby knows what the other placed"
        pair.children()[active].send_signal(signal.SIGKILL)
        started = load.started
        await until(lambda: used(pair) == other, 2.0)
        await until(lambda: load.started > started)

    asyncio.run(under_load(pair, kill))
    assert pair.children()[other].pid == first_pid, "it was there, not restarted"
    assert placed(pair, socket_of(other)) >= 10
    wait_until("no credit is left", lambda: settled(pair, socket_of(other)))


def test_a_stopped_router_is_left_for_the_other_and_does_no_harm_when_it_wakes(
    pair: Fleet,
) -> None:
    for router in ("main", "r1"):
        wait_until(f"{router} knows all workers", partial(knows_all, pair, router), 30.0)
    logged_before = len(pair.log("g0"))
    active = used(pair)
    other = "r1" if active == "r0" else "r0"

    async def stop(load: Load) -> None:
        victim = pair.children()[active]
        victim.send_signal(signal.SIGSTOP)
        await until(lambda: victim.status() == psutil.STATUS_STOPPED)
        await until(lambda: used(pair) == other)
        started = load.started
        await until(lambda: load.started >= started + 10)
        victim.send_signal(signal.SIGCONT)

    asyncio.run(under_load(pair, stop))
    assert "sends nothing for 1 s" in pair.log("g0")[logged_before:], (
        "found by silence, not by a close"
    )
    assert used(pair) == other, "nobody fails back"
    wait_until("no credit is left in main", lambda: settled(pair, "main"))
    wait_until("no credit is left in r1", lambda: settled(pair, "r1"))
