"""The first moments of a router: it places nothing until it knows what already runs.

What an earlier router placed is known from the workers' first reports. Requests wait in the queue
until every worker of the fleet file has reported, or `rebuild_seconds` have passed. A request that
the earlier router had placed, and whose `Placed` was lost, is then found on its worker instead of
being placed twice.
"""

from __future__ import annotations

from services.router.events import Action, Note
from services.router.records.states import WorkerState
from services.router.tables import Tables


def open_queue(tables: Tables, now: float) -> list[Action]:
    """Lets placement begin when it is time."""
    waited, missing = now - tables.started, _missing(tables)
    if missing and waited < tables.settings.rebuild_seconds:
        return []
    tables.end_rebuild()
    sentence = (
        f"placing begins {waited:.1f} s after the start: {len(tables.workers)} workers of "
        f"{tables.model} reported, {missing} did not; "
        f"{tables.counts.adopted} requests were already running"
    )
    return [Note("info", "router.rebuilt", sentence)]


def _missing(tables: Tables) -> int:
    """Workers of the fleet file that have not reported yet; 1 when the file names none."""
    expected = [who for who, model in tables.settings.expected.items() if model == tables.model]
    if not expected:
        return 1
    found = 0
    for name in expected:
        worker = tables.workers.get(tables.shared.names.get(name, ""))
        found += worker is not None and worker.state is not WorkerState.JOINING
    return len(expected) - found
