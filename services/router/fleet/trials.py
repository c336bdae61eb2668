"""Decode workers that are set aside for the trial of a suspected prompt (`prompt_quarantine.py`).

Such a worker gets nothing else. The trial begins when it has nothing left, or after the wait that
the caller allows, with the company that is left then. At most a third of the decode workers, and
always one, are set aside at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.identity import AttemptKey
from services.router.placement.types import WorkerView

SHARE_MAX = 0.34


@dataclass(slots=True)
class Trial:
    #: Digest of the prompt.
    digest: bytes
    #: Since when a worker is set aside for it.
    since: float
    #: The attempt that runs there; None = it has not begun.
    attempt: AttemptKey | None = None


class Trials:
    def __init__(self) -> None:
        #: Trials by the identity of their worker.
        self.rows: dict[str, Trial] = {}

    def of(self, digest: bytes) -> tuple[str, Trial] | None:
        """The worker that is set aside for this prompt, and its trial."""
        return next(((w, trial) for w, trial in self.rows.items() if trial.digest == digest), None)

    def set_aside(
        self, digest: bytes, decodes: Iterable[WorkerView], workers: int, now: float
    ) -> str | None:
        """Chooses the one with the fewest requests of the ready decode workers that could hold the
        prompt. `workers`: how many decode workers are ready. None: all that may be are set aside
        for others. A trial that waits for its worker moves to a better one and waits no longer."""
        mine = self.of(digest)
        if mine is None and len(self.rows) >= max(1, int(workers * SHARE_MAX)):
            return None
        own = mine[0] if mine is not None else ""
        free = [v for v in decodes if v.identity == own or v.identity not in self.rows]
        if not free:
            return None
        best = min(free, key=lambda view: (view.requests, view.last_placed_serial, view.name))
        since = now
        if mine is not None:
            since = mine[1].since
            del self.rows[mine[0]]
        self.rows[best.identity] = Trial(digest, since)
        return best.identity

    def spared(self, views: list[WorkerView]) -> list[WorkerView]:
        """Those of these that are not set aside."""
        return [view for view in views if view.identity not in self.rows] if self.rows else views

    def end(self, key: AttemptKey) -> None:
        """The attempt is over, or is no longer alone. Idempotent."""
        for worker, trial in list(self.rows.items()):
            if trial.attempt == key:
                del self.rows[worker]
