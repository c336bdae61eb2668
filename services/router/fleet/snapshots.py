"""Snapshots of the ready workers. Only those that changed are taken anew, and decode workers
without a free slot are kept apart, so that placement in a full fleet costs almost nothing."""

from __future__ import annotations

from itertools import islice

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
        """All ready prefill workers, mixed ones included."""
        self._refresh(Role.PREFILL)
        return list(self._prefills.values())

    def open_decodes(self) -> list[WorkerView]:
        """Ready decode workers with a free slot, mixed ones included."""
        self._refresh(Role.DECODE)
        return list(self._open.values())

    def next_full_decodes(self, most: int) -> list[WorkerView]:
        """So many of the ready decode workers without a free slot, in turn from call to call."""
        self._refresh(Role.DECODE)
        views = list(islice(self._full.values(), most))
        if len(views) < len(self._full):
            for view in views:
                self._full[view.identity] = self._full.pop(view.identity)
        return views

    def decodes(self) -> list[WorkerView]:
        """All ready decode workers, with a free slot or not."""
        self._refresh(Role.DECODE)
        return [*self._open.values(), *self._full.values()]

    def any_decode(self) -> bool:
        """Whether a decode worker is ready, with a free slot or not."""
        self._refresh(Role.DECODE)
        return bool(self._open or self._full)

    def totals(self, role: Role) -> Totals:
        """Sums over the ready workers of this role, but for patient ones."""
        self._refresh(role)
        return self._totals[role]

    def refresh(self) -> None:
        """A row is about to be replaced by one of another role: what changed in it comes first."""
        for role in self._totals:
            self._refresh(role)

    def _refresh(self, role: Role) -> None:
        """Only this role is refreshed, and mixed workers: a request changes workers of both, one
        after the other."""
        for stale in (self._stale[role], self._stale[Role.MIXED]):
            for identity, worker in stale.items():
                view = worker.view() if worker.ready else None
                for part in worker.role.parts:
                    before = self._replace(part, identity, view)
                    self._totals[part].replace(_counted(before), _counted(view))
            stale.clear()

    def _replace(self, role: Role, identity: str, view: WorkerView | None) -> WorkerView | None:
        """Returns the view before."""
        if role is Role.PREFILL:
            return _put(self._prefills, identity, view)
        full = view is not None and view.requests >= view.requests_max
        was_open = _put(self._open, identity, None if full else view)
        was_full = _put(self._full, identity, view if full else None)
        return was_open or was_full


def _counted(view: WorkerView | None) -> WorkerView | None:
    """Patient workers are no capacity: only the lowest class, which is promised no time, gets
    them."""
    return None if view is None or view.patient else view


def _put(views: dict[str, WorkerView], identity: str, view: WorkerView | None) -> WorkerView | None:
    """Sets the view of this worker, or removes it if `view` is None. Returns the one before."""
    if view is None:
        return views.pop(identity, None)
    old = views.get(identity)
    views[identity] = view
    return old
