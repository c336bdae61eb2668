"""`explain`: one request's timeline, from its arrival to its end, and why each decision was made;
or the slowest requests and the failures that the flight recorder kept.

`timeline` is the record that is made when a request is over (`services/router/timeline`). Until
then it is empty, and only the attempts are known, as the router observes them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from common.errors import BatonError, Code
from common.net.admin_verbs import Value
from common.telemetry.timeline import TimelineRecord
from services.router.admin.named import known_attempts, known_request
from services.router.admin.verb import View
from services.router.timeline.attempt_story import attempt_records
from services.router.timeline.record import make_record
from services.router.timeline.recorder import KeptRecord, measures

BY = {"ttft": "ttft_ms", "tpot": "tpot_ms", "total": "total_ms"}
HEAD = (
    "request_id", "outcome", "code", "sentence", "total_ms", "ttft_ms", "tpot_ms", "itl_ms_max",
    "prompt_tokens", "completion_tokens", "tenant", "gateway", "moves",
)  # fmt: skip


def run(view: View, args: dict[str, Value]) -> Any:
    if args["list"]:
        return _listed(view, str(args["list"]), str(args["by"]), int(args["limit"]))
    if not args["id"]:
        sentence = "explain needs 'id', or list=slow, list=failed, list=refused or list=recent"
        raise BatonError(Code.INVALID_REQUEST, sentence)
    request_id = known_request(view.shared, str(args["id"]))
    known = [a for a in known_attempts(view.shared) if a.request_id == request_id]
    known.sort(key=lambda attempt: attempt.number)
    kept = view.shared.recorder.find(request_id)
    record = kept.record if kept is not None else _record_now(view, request_id)
    attempts = attempt_records(known, view.now)
    return {
        "request_id": request_id,
        "timeline": record or {},
        "attempts": attempts or (record.attempts if record is not None else ()),
    }


def _record_now(view: View, request_id: str) -> TimelineRecord | None:
    """The record of a request that is over but not recorded yet; None while it is live."""
    shared = view.shared
    attempts = shared.attempts_over(request_id)
    if shared.holder_of_request(request_id) is not None or not attempts:
        return None
    return make_record(shared.recorder.summaries.get(request_id), attempts, view.now)


def _listed(view: View, which: str, by: str, limit: int) -> list[dict[str, Any]]:
    recorder, measure = view.shared.recorder, BY[by]
    found = list(recorder.recent if which == "recent" else recorder.kept[which])
    if which == "slow":
        found = sorted(
            (kept for kept in found if measure in kept.slow_by),
            key=lambda kept: -measures(kept.record)[measure],
        )
    else:
        found.reverse()
    return [_row(kept, view.now) for kept in found[:limit]]


def _row(kept: KeptRecord, now: float) -> dict[str, Any]:
    record, longest = kept.record, kept.record.longest_phase()
    fields = msgspec.structs.asdict(record)
    return {
        **{name: fields[name] for name in HEAD},
        "ago_ms": round((now - kept.at) * 1000),
        "slow_by": kept.slow_by,
        "phases": [{"phase": phase.phase, "ms": phase.ms} for phase in record.phases],
        "longest_phase": longest.phase if longest else "",
        "longest_ms": longest.ms if longest else 0.0,
        "longest_worker": longest.worker if longest else "",
    }
