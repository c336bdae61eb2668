"""`drain`: a worker receives nothing new and finishes what it has. A second call shows progress.
`resume` ends it. `role`: a worker takes another role once it holds nothing; its present role takes
the order back.

The worker keeps the order and reports it in its beats, so the drain outlives the router, but not a
restart of the worker. So it is with its role: it restarts in that of the fleet file.
"""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from common.messages import Role
from common.net.admin_verbs import Value
from services.router.admin.named import worker_named
from services.router.admin.verb import View
from services.router.events import RoleOrdered, WorkerDrained
from services.router.records.worker import Worker
from services.router.rules.operator import why_no_role


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    worker = worker_named(view.shared, str(args["worker"]))
    if not worker.drained:
        view.act(WorkerDrained(worker.identity, on=True))
    return progress(worker)


def resume(view: View, args: dict[str, Value]) -> dict[str, Any]:
    worker = worker_named(view.shared, str(args["worker"]))
    view.act(WorkerDrained(worker.identity, on=False))
    return progress(worker)


def role(view: View, args: dict[str, Value]) -> dict[str, Any]:
    worker = worker_named(view.shared, str(args["worker"]))
    wanted = Role(str(args["role"]))
    tables = view.shared.owners[worker.identity]
    if wanted is not (worker.next_role or worker.role):
        why = why_no_role(tables, worker, wanted, view.now)
        if why:
            sentence = f"{worker.name} cannot become a {wanted} worker: {why}"
            raise BatonError(Code.INVALID_REQUEST, sentence)
        view.act(RoleOrdered(worker.identity, wanted))
    return {
        **progress(worker),
        "becomes": worker.next_role or "",
        "confirmed": worker.role_state.ordered is None,
        "role_s": round(view.now - worker.role_state.since, 1),
    }


def progress(worker: Worker) -> dict[str, Any]:
    """What a drained worker still has to finish."""
    return {
        "worker": worker.name,
        "role": worker.role.value,
        "state": worker.display_state,
        "requests_left": len(worker.held),
        "kv_tokens_left": worker.held_tokens,
    }
