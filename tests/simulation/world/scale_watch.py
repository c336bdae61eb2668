"""The controller of numbers, watched: each of its orders against what its router can see then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.messages import Role
from services.router.events import Action, Note
from services.router.fleet.scale.controller import Phase
from services.router.records.states import WorkerState
from services.router.tables import Tables

if TYPE_CHECKING:
    from tests.simulation.world.router import RouterProcess

LOOK_SECONDS = 0.1
SETTLE_SECONDS = 0.5


class ScaleWatch:
    """Of one router and model: when it orders."""

    def __init__(self, router: RouterProcess, tables: Tables) -> None:
        self._router, self._tables = router, tables
        self._ends = -1.0
        #: Orders that it gave.
        self.orders = 0

    def after(self, actions: list[Action]) -> None:
        now, tables = self._router.clock.now, self._tables
        told = [a for a in actions if isinstance(a, Note) and a.event.startswith("scale.")]
        for note in told:
            self._router.clock.note(f"{self._router.name}: {note.event} {note.sentence}")
        for note in (note for note in told if note.sentence.startswith(f"{tables.model}:")):
            if note.event == "scale.ordered":
                self._ordered(now)
            elif note.event in ("scale.failed", "scale.answered", "scale.taken_back"):
                self._ends = now
        order = tables.scale.open
        if order is not None:
            kept = order.phase in (Phase.PROPOSED, Phase.ASKING)
            phase = "ordered" if kept else order.phase.value
            self._router.fleet.scale_reached(phase, self._router.identity, order.worker)

    def _ordered(self, now: float) -> None:
        self.orders += 1
        tables, rows = self._tables, self._tables.workers.values()
        first = not any(row.ready and row.role.decodes for row in rows)
        if not first and now - self._ends < tables.scale.config.cooldown_ms / 1000 - 1e-9:
            self._router.clock.violate(f"{self._router.name} orders workers again at once")
        if not first and any(row.role is Role.MIXED and not row.away for row in rows):
            self._router.clock.violate(f"{self._router.name} orders workers beside a mixed one")
        stops = tables.scale.open.worker if tables.scale.open is not None else ""
        moving = (WorkerState.JOINING, WorkerState.DRAINING)
        for row in rows:
            busy = row.state in moving or (row.drained and row.connected)
            if busy and row.name != stops and row.identity not in tables.scale.left:
                self._router.clock.violate(f"{self._router.name} orders workers in a rollout")
