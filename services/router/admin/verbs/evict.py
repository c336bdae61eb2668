"""`evict`: drops work now. A worker is drained and all its requests are given up, so that gateways
move them elsewhere. A request is ended, and its client receives an error at once."""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from common.net.admin_verbs import Value
from services.router.admin.named import worker_named
from services.router.admin.verb import View
from services.router.admin.verbs.drain import progress
from services.router.events import RequestEvicted, WorkerEvicted


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    worker, request = str(args["worker"]), str(args["request"])
    if bool(worker) == bool(request):
        raise BatonError(Code.INVALID_REQUEST, "evict needs a worker or request=ID, one of the two")
    if request:
        return _request(view, request)
    row = worker_named(view.shared, worker)
    held = len(row.held)
    view.act(WorkerEvicted(row.identity))
    return {**progress(row), "requests_dropped": held}


def _request(view: View, request_id: str) -> dict[str, Any]:
    tables = view.shared.holder_of_request(request_id)
    if tables is None:
        sentence = f"no request {request_id[:96]!r} is queued or running; `requests` lists them"
        raise BatonError(Code.NOT_FOUND, sentence)
    attempt = tables.newest[request_id]
    state = tables.attempts[request_id, attempt].state.value
    view.act(RequestEvicted(request_id, attempt))
    return {"request_id": request_id, "attempt": attempt, "was": state, "requests_dropped": 1}
