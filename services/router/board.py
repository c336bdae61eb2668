"""Snapshots of the ready workers, kept current: only those that changed are taken anew, and decode
workers without a free slot are set aside, so that a full fleet costs placement almost nothing."""

from __future__ import annotations

from common.messages import Role
from services.router.placement_types import WorkerView
from services.router.records import Worker


class Board:
    """`changed`: every worker adds itself here when its snapshot is stale."""

    def __init__(self) -> None:
        self.changed: dict[str, Worker] = {}
        self._prefills: dict[str, WorkerView] = {}
        self._open: dict[str, WorkerView] = {}
        self._full: dict[str, WorkerView] = {}

    def prefills(self) -> list[WorkerView]:
        """All ready prefill workers."""
        self._refresh()
        return list(self._prefills.values())

    def open_decodes(self) -> list[WorkerView]:
        """Ready decode workers with a free slot."""
        self._refresh()
        return list(self._open.values())

    def any_decode(self) -> bool:
        """Whether a decode worker is ready, with a free slot or not."""
        self._refresh()
        return bool(self._open or self._full)

    def _refresh(self) -> None:
        for identity, worker in self.changed.items():
            self._prefills.pop(identity, None)
            self._open.pop(identity, None)
            self._full.pop(identity, None)
            if worker.ready:
                view = worker.view()
                self._shelf(worker.role, view)[identity] = view
        self.changed.clear()

    def _shelf(self, role: Role, view: WorkerView) -> dict[str, WorkerView]:
        if role is Role.PREFILL:
            return self._prefills
        return self._open if view.requests < view.requests_max else self._full
