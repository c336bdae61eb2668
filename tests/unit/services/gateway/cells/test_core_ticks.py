"""A tick that a cell is not given would have done nothing there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Code
from services.gateway.requests.events import Action, Closed, Event, Opened, Tick, WorkerGone
from services.gateway.requests.request import LiveRequest
from tests.unit.services.gateway.cells.test_core import CELLS, Rig, tenant_of

WAIT_MAX_MS = 4_000


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens; `number` chooses among requests and cells."""

    what: str
    number: int


OF_A_REQUEST = ("place", "token", "end", "refuse", "close")
KINDS = ("open", "lose", "up", "gone", "wait", "late", *OF_A_REQUEST)
STEPS = st.lists(
    st.builds(Step, st.sampled_from(KINDS), st.integers(0, 5_000)), min_size=10, max_size=60
)


def every_cell_is_told(rig: Rig) -> None:
    rig.core._index.take_due = lambda *_, **__: set(CELLS)  # type: ignore[method-assign]


def do(rig: Rig, step: Step, opened: list[str]) -> None:
    request = next((r for c in rig.core.cells.values() for r in c.core.lifecycle.table), None)
    cell = sorted(CELLS)[step.number % len(CELLS)]
    if request is not None and step.what in OF_A_REQUEST:
        do_to_request(rig, step.what, cell, request)
        return
    match step.what:
        case "open":
            opened.append(f"r{len(opened)}")
            rig.do(Opened(*rig.opened(f"t{step.number}", opened[-1])))
        case "wait":
            rig.wait(step.number % WAIT_MAX_MS / 1000)
        case "late":
            rig.now += 1.0
            rig.do(Tick())
        case "lose":
            rig.lose(cell)
        case "up":
            rig.up(cell)
        case "gone":
            rig.do(WorkerGone(f"d0|of-{cell}".encode(), "killed"))


def do_to_request(rig: Rig, what: str, cell: str, request: LiveRequest) -> None:
    request_id = request.spec.request_id
    match what:
        case "close":
            rig.do(Closed(request_id, "gone"))
        case "refuse":
            rig.refuse(cell, Code.OVERLOADED, request_id)
        case "place":
            rig.place(cell, request.attempt, request_id=request_id)
        case "token" | "end":
            index = len(request.stream.journal.emitted)
            end = "length" if what == "end" else ""
            rig.token(cell, index, request.attempt, end, request_id=request_id)


def test_cells_where_nothing_is_due_are_not_told_the_time() -> None:
    rig, told = Rig(), list[str]()
    for cell in rig.core.cells.values():
        heard = partial(note_ticks, told, cell.name, cell.core.handle)
        cell.core.handle = heard  # type: ignore[method-assign]
    rig.open(tenant_of("c0", "c1"))
    rig.place("c0")
    rig.token("c0", 0)
    rig.wait(0.5)
    assert told == []
    rig.token("c0", 1, end="length")
    rig.wait(0.5)
    assert told == ["c0"]


def note_ticks(
    told: list[str], cell: str, handle: Callable[[Event, float], list[Action]], *call: Any
) -> list[Action]:
    """What `handle` does; `told` is who gets a tick."""
    if isinstance(call[0], Tick):
        told.append(cell)
    return handle(*call)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_what_leaves_is_the_same_as_if_every_cell_were_told_the_time(steps: list[Step]) -> None:
    rig, told = Rig(token_wait_ms_max=6_000), Rig(token_wait_ms_max=6_000)
    every_cell_is_told(told)
    for one in (rig, told):
        opened: list[str] = []
        for step in steps:
            do(one, step, opened)
    assert rig.sent == told.sent
    assert rig.aborted == told.aborted
    assert rig.reports == told.reports
    for request_id, answer in rig.answers.items():
        error, other = answer.error, told.answers[request_id].error
        assert (error and error.code) == (other and other.code)
