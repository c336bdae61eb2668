"""The controller of roles, watched: each of its orders against what its router can see then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.messages import Become, Role
from services.router.events import Action, Note, Send
from services.router.fleet.balance.controller import Pace
from services.router.fleet.roles import WITH_ENGINE
from services.router.records.states import WorkerState
from services.router.tables import Tables

if TYPE_CHECKING:
    from tests.simulation.world.router import RouterProcess

PACE = Pace(look_s=0.1, short_s=0.8, long_s=0.3, cooldown_s=0.3, requests_min=1)


class BalanceWatch:
    """Of one router and model: what its controller orders."""

    def __init__(self, router: RouterProcess, tables: Tables) -> None:
        self._router = router
        self._tables = tables
        self._last: float | None = None
        #: Orders that it gave.
        self.orders = 0

    def after(self, actions: list[Action]) -> None:
        notes = [a.event for a in actions if isinstance(a, Note)]
        if "balance.ordered" not in notes:
            return
        self.orders += 1
        tables, now = self._tables, self._router.clock.now
        sent = [a for a in actions if isinstance(a, Send) and isinstance(a.message, Become)]
        ordered = {a.peer for a in sent}
        if len(ordered) != notes.count("balance.ordered"):
            self._violate(f"says one order and sends {len(ordered)}")
        if self._last is not None and now - self._last < PACE.cooldown_s:
            self._violate(f"orders a role {now - self._last:.3f} s after another one")
        self._last = now
        rows = [w for w in tables.workers.values() if w.role in WITH_ENGINE]
        for role in (Role.PREFILL, Role.DECODE):
            if not any(row.ready and role in row.role.parts for row in rows):
                self._violate(f"leaves no {role} worker of {tables.model}")
        if any(row.role is Role.MIXED and not row.away for row in rows):
            self._violate("orders a role beside a mixed worker")
        if any(row.next_role and not row.away and row.identity not in ordered for row in rows):
            self._violate("lets two workers change their role at once")
        moving = (WorkerState.JOINING, WorkerState.DRAINING)
        if any(r.state in moving or (r.drained and r.connected) for r in rows):
            self._violate("orders a role during a rollout")

    def _violate(self, sentence: str) -> None:
        self._router.clock.violate(f"{self._router.name} {sentence}")
