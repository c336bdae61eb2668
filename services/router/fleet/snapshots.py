"""Snapshots of the ready workers. Only those that changed are taken anew, and decode workers
without a free slot are kept apart, so that placement in a full fleet costs almost nothing."""

from __future__ import annotations

from common.messages import Role
from services.router.fleet.role_totals import Totals
from services.router.placement.types import WorkerView
from services.router.records.changes import Changes


class WorkerSnapshots:
    def __init__(self, changes: Changes) -> None:
        self._stale = changes.stale_snapshots
        self._prefills: dict[str, WorkerView] = {}
        #: Decode workers with a free slot.
        self._open: dict[str, WorkerView] = {}
        #: Decode workers without one.
        self._full: dict[str, WorkerView] = {}
        self._totals = {Role.PREFILL: Totals(), Role.DECODE: Totals()}

    def prefills(self) -> list[WorkerView]:
        """All ready prefill workers."""
        self._refresh(Role.PREFILL)
        return list(self._prefills.values())

    def open_decodes(self) -> list[WorkerView]:
        """Ready decode workers with a free slot."""
        self._refresh(Role.DECODE)
        return list(self._open.values())

    def decodes(self) -> list[WorkerView]:
        """All ready decode workers, with a free slot or not."""
        self._refresh(Role.DECODE)
        return [*self._open.values(), *self._full.values()]

    def any_decode(self) -> bool:
        """Whether a decode worker is ready, with a free slot or not."""
        self._refresh(Role.DECODE)
        return bool(self._open or self._full)

    def totals(self, role: Role) -> Totals:
        """Sums over the ready workers of this role."""
        self._refresh(role)
        return self._totals[role]

    def _refresh(self, role: Role) -> None:
        """Only this role is refreshed: a request changes workers of both, one after the other."""
        stale = self._stale[role]
        if not stale:
            return
        totals = self._totals[role]
        for identity, worker in stale.items():
            view = worker.view() if worker.ready else None
            if role is Role.PREFILL:
                old = _put(self._prefills, identity, view)
            else:
                full = view is not None and view.requests >= view.requests_max
                was_open = _put(self._open, identity, None if full else view)
                was_full = _put(self._full, identity, view if full else None)
                old = was_open or was_full
            totals.replace(old, view)
        stale.clear()


def _put(views: dict[str, WorkerView], identity: str, view: WorkerView | None) -> WorkerView | None:
    """Sets the view of this worker, or removes it if `view` is None. Returns the one before."""
    if view is None:
        return views.pop(identity, None)
    old = views.get(identity)
    views[identity] = view
    return old
