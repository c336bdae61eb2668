"""`resume`: ends a drain."""

from __future__ import annotations

from typing import Any

from common.net.admin_verbs import Value
from services.router.admin.named import worker_named
from services.router.admin.verb import View
from services.router.admin.verbs.drain import progress
from services.router.events import WorkerDrained


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    worker = worker_named(view.shared, str(args["worker"]))
    view.act(WorkerDrained(worker.identity, on=False))
    return progress(worker)
