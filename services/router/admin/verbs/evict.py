"""`evict`: drops work now. A worker is drained. Its streams that can go on elsewhere with their KV
have two seconds to move; all else that it holds is given up, and gateways continue it elsewhere. A
second call drops what has not moved yet. A request is ended, and its client receives an error at
once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from common.errors import BatonError, Code
from common.net.admin_verbs import Value
from services.router.admin.named import request_named, worker_named
from services.router.admin.verb import View
from services.router.admin.verbs.drain import progress
from services.router.events import RequestEvicted, WorkerEvicted
from services.router.rules.operator import why_dropped


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    worker, request = str(args["worker"]), str(args["request"])
    if bool(worker) == bool(request):
        raise BatonError(Code.INVALID_REQUEST, "evict needs a worker or request=ID, one of the two")
    if request:
        return _request(view, request)
    row = worker_named(view.shared, worker)
    reasons = why_dropped(view.shared.owners[row.identity], row)
    why = {key: why or "it had not moved" for key, why in reasons.items()}
    view.act(WorkerEvicted(row.identity))
    dropped = {key: reason for key, reason in why.items() if key not in row.held}
    return {
        **progress(row),
        "requests_dropped": len(dropped),
        "requests_moving": len(row.held),
        "dropped_because": dict(Counter(dropped.values())),
    }


def _request(view: View, request_id: str) -> dict[str, Any]:
    attempt = request_named(view.shared, request_id)
    state = attempt.state.value
    view.act(RequestEvicted(*attempt.key))
    return {
        "request_id": request_id,
        "attempt": attempt.number,
        "was": state,
        "requests_dropped": 1,
    }
