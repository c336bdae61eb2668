"""Two cells of real vLLM behind one gateway, each of one prefill and one decode worker. The router
of one is down for seconds, then all of that cell is killed while both have streams. Every text is
that of an undisturbed fleet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from common.errors import BatonError
from tests.chaos.progress import say
from tests.chaos.report import Row
from tests.chaos.scenarios.run import every_kind, nothing_lost
from tests.chaos.scenarios.vllm import ASK, PLAN, RATE
from tests.rigs.cells import CELLS, WHOLE, keep_down, kill, logged, requests_of
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.load import Load

DOWN_SECONDS = 4.0
AGAIN_SECONDS = 240.0
MORE = 6
EVENTS = ("router.lost", "request.recovered", "request.spilled")


async def one_lost() -> list[Row]:
    with fleet("--cells", "2", env=dict(PLAN.settings)) as running:
        await asyncio.to_thread(running.wait_ready)
        rows = await _part(running, "its router", ("router",), DOWN_SECONDS)
        say(rows)
        return rows + await _part(running, "all of it", WHOLE, 0.0)


async def _part(running: Fleet, what: str, roles: Collection[str], seconds: float) -> list[Row]:
    """`seconds`: for which what was killed is killed again when it is back."""
    test = f"two cells on vLLM, one loses {what}"
    began, before = {event: len(logged(running, event)) for event in EVENTS}, dict[str, set[str]]()
    load = Load(running.url, rate=RATE, ask=ASK)
    await load.learn()

    def both_busy() -> bool:
        before.update({cell: requests_of(running, cell) for cell in CELLS})
        return all(before.values())

    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        try:
            await _until("both cells have streams", both_busy)
            if seconds:
                await keep_down(running, "c1", seconds, roles)
            else:
                assert kill(running, "c1", roles) == len(roles)
            await _more(load)
            await _until("the cell is back", lambda: _serves(running, "c1"))
            await _more(load)
        finally:
            load.stop()
    told = {event: logged(running, event)[began[event] :] for event in EVENTS}
    gone = len(told["router.lost"])
    moved = {line["request_id"] for line in told["request.recovered"]}
    touched, went_on = len(moved & before["c0"]), len(moved & before["c1"])
    sentences = [line["sentence"] for line in told["request.spilled"]]
    instead = sentences.count("cell c1 is lost; c0 serves the request")
    few, expected = ("1 or more", went_on > 0) if roles == WHOLE else ("0", not went_on)
    return [
        nothing_lost(test, load.answers, 2 * MORE),
        every_kind("- of them", load.answers),
        Row("- times that its router was lost", str(gone), "1 or more", gone > 0),
        Row("- new requests that the other served", str(instead), "1 or more", instead > 0),
        Row("- streams of the other that were touched", str(touched), "0", not touched),
        Row("- its own streams that went on elsewhere", str(went_on), few, expected),
    ]


def _serves(running: Fleet, cell: str) -> bool:
    try:
        return bool(running.ctl("status", "--cell", cell)["ready"])
    except (AssertionError, BatonError):
        return False


async def _more(load: Load) -> None:
    least = load.started + MORE
    await _until("more came", lambda: load.started >= least)


async def _until(what: str, true: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, what, true, AGAIN_SECONDS)
