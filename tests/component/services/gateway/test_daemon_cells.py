"""A gateway daemon that serves two cells, over the real sockets: the one that a session belongs to
is asked, the other one when it refuses or is lost, and a stream goes on there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.messages import Leaving, OtherCell, Submit
from common.net.endpoints import config_of_cell
from services.gateway.cells import rendezvous
from tests.component.services.gateway.rig import (
    BackgroundRequest,
    FakeRouter,
    FakeWorker,
    MakeRig,
    Rig,
    all_events,
    delta,
    next_event,
    place_on,
    refuse_with,
)
from tests.rigs.peers import WAIT_SECONDS

CELLS = ("c0", "c1")


def session_of(cell: str) -> str:
    capacities = dict.fromkeys(CELLS, 1.0)
    names = (f"s{n}" for n in range(100))
    sessions = ((name, rendezvous.order(f"session {name}".encode(), capacities)) for name in names)
    return next(name for name, order in sessions if order[0] == cell)


@dataclass
class Cells:
    """`routers` and `workers`: by cell; each worker has the name of its cell."""

    rig: Rig
    routers: dict[str, FakeRouter]
    workers: dict[str, FakeWorker]

    def ask(self, cell: str, *, stream: bool = False) -> BackgroundRequest:
        """A request of a session that belongs to this cell."""
        body = {"model": "m", "prompt": "hi", "max_tokens": 4, "stream": stream}
        headers = {"x-session-id": session_of(cell)}
        posted = self.rig.http.post(f"{self.rig.url}/v1/completions", json=body, headers=headers)
        return BackgroundRequest(self.rig.tasks, posted)

    async def lose(self, cell: str) -> None:
        self.routers[cell].close()
        self.workers[cell].close()
        async with asyncio.timeout(WAIT_SECONDS):
            while self.rig.gateway.core.cells[cell].core.router_up:
                await self.rig.turn()


@pytest.fixture
async def cells(make_rig: MakeRig, tmp_path: Path) -> AsyncIterator[Cells]:
    (tmp_path / "c1").mkdir(mode=0o750)
    rig = await make_rig(cells={"c0": {}, "c1": {"run_dir": str(tmp_path / "c1")}})
    other = FakeRouter(config_of_cell(rig.config, "c1"), 4096)
    routers = {"c0": rig.router, "c1": other}
    for cell, router in routers.items():
        router.answer = place_on(cell)
        async with asyncio.timeout(WAIT_SECONDS):
            await router.hello.wait()
            while not rig.gateway.core.cells[cell].serves("m"):
                await rig.turn()
    yield Cells(rig, routers, {cell: await rig.worker(cell) for cell in CELLS})
    other.close()


async def test_a_request_reaches_the_router_of_its_cell(cells: Cells) -> None:
    for cell in CELLS:
        asked = cells.ask(cell)
        submit = await cells.routers[cell].next(Submit)
        cells.workers[cell].send(delta(submit, 0, "abcd", finish_reason="length"))
        response = await asked.response()
        assert (await response.json())["choices"][0]["text"] == "abcd"


async def test_what_one_cell_refuses_the_other_serves(cells: Cells) -> None:
    cells.routers["c0"].answer = refuse_with("overloaded")
    asked = cells.ask("c0")
    submit = await cells.routers["c1"].next(Submit)
    assert (submit.attempt, submit.other_cell) == (1, OtherCell(serves=True))
    cells.workers["c1"].send(delta(submit, 0, "abcd", finish_reason="length"))
    assert (await asked.response()).status == 200


async def test_what_both_refuse_is_refused(cells: Cells) -> None:
    for router in cells.routers.values():
        router.answer = refuse_with("overloaded", 2_000)
    response = await cells.ask("c0").response()
    assert (response.status, response.headers["Retry-After"]) == (503, "2")


async def test_a_stream_of_a_lost_cell_goes_on_and_one_of_the_other_is_untouched(
    cells: Cells,
) -> None:
    streams = {cell: cells.ask(cell, stream=True) for cell in CELLS}
    submits = {cell: await cells.routers[cell].next(Submit) for cell in CELLS}
    for cell in CELLS:
        cells.workers[cell].send(delta(submits[cell], 0, "ab"))
    responses = {cell: await streams[cell].response() for cell in CELLS}
    firsts = {cell: (await next_event(responses[cell]))["choices"][0]["text"] for cell in CELLS}
    await cells.lose("c1")
    moved = await cells.routers["c0"].next(Submit)
    assert (moved.request_id, moved.attempt) == (submits["c1"].request_id, 2)
    assert moved.other_cell is not None
    cells.workers["c0"].send(delta(moved, 0, "cd", finish_reason="length"))
    cells.workers["c0"].send(delta(submits["c0"], 2, "cd", finish_reason="length"))
    for cell in CELLS:
        *rest, done = await all_events(responses[cell])
        text = firsts[cell] + "".join(e["choices"][0]["text"] for e in rest if e["choices"])
        assert (text, done) == ("abcd", "[DONE]")


async def test_the_routers_of_all_cells_hear_that_it_leaves(cells: Cells) -> None:
    await cells.rig.gateway.stop()
    for router in cells.routers.values():
        assert (await router.next(Leaving)).reason == "stopping"
