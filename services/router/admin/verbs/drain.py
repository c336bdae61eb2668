"""`drain`: a worker receives nothing new and finishes what it has. A second call shows progress.
`resume` ends it.

The worker keeps the order and reports it in its beats, so the drain outlives the router, but not a
restart of the worker.
"""

from __future__ import annotations

from typing import Any

from common.net.admin_verbs import Value
from services.router.admin.named import worker_named
from services.router.admin.verb import View
from services.router.events import WorkerDrained
from services.router.records.worker import Worker


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    worker = worker_named(view.shared, str(args["worker"]))
    if not worker.drained:
        view.act(WorkerDrained(worker.identity, on=True))
    return progress(worker)


def resume(view: View, args: dict[str, Value]) -> dict[str, Any]:
    worker = worker_named(view.shared, str(args["worker"]))
    view.act(WorkerDrained(worker.identity, on=False))
    return progress(worker)


def progress(worker: Worker) -> dict[str, Any]:
    """What a drained worker still has to finish."""
    return {
        "worker": worker.name,
        "role": worker.role.value,
        "state": worker.display_state,
        "requests_left": len(worker.held),
        "kv_tokens_left": worker.held_tokens,
    }
