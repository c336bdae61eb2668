"""The first moments of a router: it places nothing before it knows what runs. Called by `core.py`
and `core_health.py` only.

What an earlier router placed is known from the workers' first reports. Until every worker of the
fleet file has reported, or `rebuild_seconds` have passed, requests wait in the queue: one that the
earlier router had placed, and whose `Placed` was lost, is then found on its worker, not placed
twice.
"""

from __future__ import annotations

from services.router.events import Action, Note
from services.router.state import WorkerState
from services.router.tables import Tables


def check(tables: Tables, now: float) -> list[Action]:
    """Opens the queue when the time has come. Idempotent."""
    if not tables.rebuilding:
        return []
    waited, missing = now - tables.started, _missing(tables)
    if missing and waited < tables.settings.rebuild_seconds:
        return []
    tables.rebuilding, tables.freed = False, True
    sentence = (
        f"placing begins {waited:.1f} s after the start: {len(tables.workers)} workers reported, "
        f"{missing} did not; {tables.counts.adopted} requests were already running"
    )
    return [Note("info", "router.rebuilt", sentence)]


def _missing(tables: Tables) -> int:
    """Workers of the file that have not reported yet; 1 when the file names none."""
    expected = tables.settings.expected
    if not expected:
        return 1
    found = 0
    for name in expected:
        worker = tables.workers.get(tables.names.get(name, ""))
        found += worker is not None and worker.state is not WorkerState.JOINING
    return len(expected) - found
