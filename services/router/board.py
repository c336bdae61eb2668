"""Snapshots of the ready workers, kept current: only those that changed are taken anew, and decode
workers without a free slot are set aside, so that a full fleet costs placement almost nothing."""

from __future__ import annotations

from common.messages import Role
from services.router.admission.totals import Totals
from services.router.placement_types import WorkerView
from services.router.records import Worker


class Board:
    """`changed`: every worker adds itself to its role's when its snapshot is stale."""

    def __init__(self) -> None:
        self.changed: dict[Role, dict[str, Worker]] = {Role.PREFILL: {}, Role.DECODE: {}}
        self._prefills: dict[str, WorkerView] = {}
        self._open: dict[str, WorkerView] = {}
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

    def any_decode(self) -> bool:
        """Whether a decode worker is ready, with a free slot or not."""
        self._refresh(Role.DECODE)
        return bool(self._open or self._full)

    def totals(self, role: Role) -> Totals:
        """Sums over the ready workers of this role."""
        self._refresh(role)
        return self._totals[role]

    def _refresh(self, role: Role) -> None:
        """Only this role: a request changes both, and is placed between."""
        changed = self.changed[role]
        if not changed:
            return
        totals = self._totals[role]
        for identity, worker in changed.items():
            view = worker.view() if worker.ready else None
            if role is Role.PREFILL:
                old = _shelve(self._prefills, identity, view)
            else:
                full = view is not None and view.requests >= view.requests_max
                was_open = _shelve(self._open, identity, None if full else view)
                was_full = _shelve(self._full, identity, view if full else None)
                old = was_open or was_full
            totals.change(old, view)
        changed.clear()


def _shelve(
    shelf: dict[str, WorkerView], identity: str, view: WorkerView | None
) -> WorkerView | None:
    """Puts the view there, or takes what is there away. What was there before."""
    if view is None:
        return shelf.pop(identity, None)
    old = shelf.get(identity)
    shelf[identity] = view
    return old
