"""`explain`: one request's timeline, from its arrival to its end, and why each decision was made;
or the slowest requests and the failures that the flight recorder kept.

`timeline` is the record that is made when a request is over (`services/router/timeline`). Until
then it is empty, and only the attempts are known, as the router observes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from common.errors import BatonError, Code
from common.net.admin_verbs import Value
from common.telemetry.timeline import TimelineRecord
from services.router.admin.verb import View
from services.router.records.attempt import Attempt
from services.router.timeline.attempt_story import attempt_records
from services.router.timeline.record import make_record
from services.router.timeline.recorder import KeptRecord, measures

NAMED_MAX = 5
RESPONSE_PREFIXES = ("chatcmpl-", "cmpl-")
BY = {"ttft": "ttft_ms", "tpot": "tpot_ms", "total": "total_ms"}
HEAD = (
    "request_id", "outcome", "code", "sentence", "total_ms", "ttft_ms", "tpot_ms", "itl_ms_max",
    "prompt_tokens", "completion_tokens", "tenant", "gateway", "moves",
)  # fmt: skip


def run(view: View, args: dict[str, Value]) -> Any:
    if args["list"]:
        return _listed(view, str(args["list"]), str(args["by"]), int(args["limit"]))
    request_id = _resolve(view, str(args["id"]))
    known = [attempt for attempt in _known(view) if attempt.request_id == request_id]
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


def _known(view: View) -> Iterator[Attempt]:
    return chain(view.shared.attempts(), view.shared.history, view.shared.refusals)


def _resolve(view: View, asked: str) -> str:
    """The id itself, or the only id that starts with it; with the client's prefix (`chatcmpl-…`) or
    without."""
    for prefix in RESPONSE_PREFIXES:
        asked = asked.removeprefix(prefix)
    every = {attempt.request_id for attempt in _known(view)} | view.shared.recorder.ids()
    ids = sorted(known for known in every if known.startswith(asked))
    if asked in ids:
        return asked
    if not asked:
        sentence = "explain needs 'id', or list=slow, list=failed, list=refused or list=recent"
        raise BatonError(Code.INVALID_REQUEST, sentence)
    if not ids:
        kept = view.shared.settings.history
        sentence = f"no request starts with {asked[:96]!r}; the last {kept} that ended are kept"
        raise BatonError(Code.NOT_FOUND, sentence)
    if len(ids) > 1:
        named = ", ".join(ids[:NAMED_MAX])
        sentence = f"{len(ids)} requests start with {asked[:96]!r}: {named}; say more of the id"
        raise BatonError(Code.INVALID_REQUEST, sentence)
    return ids[0]
