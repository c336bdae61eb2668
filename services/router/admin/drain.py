"""`drain`: a worker gets nothing new and finishes what it has. Asked again, it tells how far it is.

The order is kept by the worker and comes back with its beats: it outlives the router, not the
worker's own restart.
"""

from __future__ import annotations

from typing import Any

from services.router.admin.named import worker_named
from services.router.admin.verb import Arg, Value, Verb, View
from services.router.events import WorkerDrained
from services.router.records import Worker


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    worker = worker_named(view.tables, str(args["worker"]))
    if not worker.drained:
        view.act(WorkerDrained(worker.identity, on=True))
    return progress(worker)


def progress(worker: Worker) -> dict[str, Any]:
    """What is left of a drain."""
    return {
        "worker": worker.name,
        "role": worker.role.value,
        "state": worker.shown,
        "requests_left": len(worker.held),
        "kv_tokens_left": worker.held_tokens,
    }


VERB = Verb(
    "drain",
    "place nothing new on a worker and let it finish; ask again for progress",
    (Arg("worker", "a worker's name, as `workers` lists it"),),
    run,
)
