"""`move`: a running stream goes on at another decode worker, with its KV.

The stream leaves its worker a moment later. Its next attempt is placed on the worker that was named
if that one still has room then; `explain` says so where it has none.
"""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from common.identity import name_of
from common.net.admin_verbs import Value
from services.router.admin.named import request_named, worker_named
from services.router.admin.verb import View
from services.router.events import RequestMoved
from services.router.records.attempt import Attempt
from services.router.records.worker import Worker
from services.router.rules import moves
from services.router.tables import Tables

NAMED_MAX = 3


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    shared, to = view.shared, str(args["to"])
    attempt = request_named(shared, str(args["request"]))
    target = worker_named(shared, to) if to else None
    tables = shared.models[attempt.model]
    if attempt.leaves_by is not None:
        raise _cannot(attempt, f"it is on its way already: {attempt.leaves_by.sentence}")
    why = moves.why_it_stays(tables, attempt)
    if why:
        raise _cannot(attempt, why)
    source = tables.workers[attempt.decode]
    why = _why_not_taken(tables, attempt, source, target)
    if why:
        raise _cannot(attempt, why)
    view.act(RequestMoved(*attempt.key, target.identity if target is not None else ""))
    return {
        "request_id": attempt.request_id,
        "attempt": attempt.number,
        "from": source.name,
        "to": target.name if target is not None else "",
        "prompt_tokens": attempt.request.prompt_tokens,
        "could_go_to": [name_of(taker.identity) for taker in moves.takers(tables, attempt, source)],
    }


def _why_not_taken(tables: Tables, attempt: Attempt, source: Worker, target: Worker | None) -> str:
    if target is not None:
        return moves.why_not_taken(tables, attempt, source, target)
    if moves.takers(tables, attempt, source):
        return ""
    others = [w for w in tables.workers.values() if w.role.decodes and w.connected]
    reasons = [moves.why_not_taken(tables, attempt, source, w) for w in others if w is not source]
    more = f"; and {len(reasons) - NAMED_MAX} more" if len(reasons) > NAMED_MAX else ""
    told = "; ".join(reasons[:NAMED_MAX]) or f"{source.name} is the only decode worker"
    return f"no other decode worker can take it: {told}{more}"


def _cannot(attempt: Attempt, why: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, f"request {attempt.request_id} cannot move: {why}")
