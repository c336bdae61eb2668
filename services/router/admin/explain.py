"""`explain`: one request's timeline, from its arrival to its end, and why each decision was made;
or the slowest requests and the failures that the flight recorder kept.

`timeline` is the record that is made when a request is over (`services/router/timeline`); until
then only the attempts, as the router sees them, are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from common.errors import BatonError, Code
from services.router.admin.verb import Arg, Value, Verb, View
from services.router.core_timeline import attempts
from services.router.records import Try
from services.router.timeline.attempts import attempt_of
from services.router.timeline.record import longest, record
from services.router.timeline.recorder import Kept

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
    known = [each for each in _known(view) if each.request_id == request_id]
    known.sort(key=lambda each: each.attempt)
    kept = view.tables.recorder.find(request_id)
    told = kept.record if kept is not None else _fresh(view, request_id)
    return {
        "request_id": request_id,
        "timeline": told,
        "attempts": [attempt_of(each, view.now) for each in known] or told["attempts"],
    }


def _fresh(view: View, request_id: str) -> dict[str, Any]:
    """Made now, for one whose record is not kept; empty while it runs."""
    tables = view.tables
    over = attempts(tables, request_id)
    if request_id in tables.current or not over:
        return {}
    return record(tables.recorder.journeys.get(request_id), over, view.now)


def _listed(view: View, which: str, by: str, limit: int) -> list[dict[str, Any]]:
    recorder, measure = view.tables.recorder, BY[by]
    kept = list(recorder.recent if which == "recent" else recorder.kept[which])
    if which == "slow":
        kept = sorted(
            (each for each in kept if measure in each.slow_by),
            key=lambda each: -float(each.record[measure]),
        )
    else:
        kept.reverse()
    return [_row(each, view.now) for each in kept[:limit]]


def _row(kept: Kept, now: float) -> dict[str, Any]:
    told, worst = kept.record, longest(kept.record)
    return {
        **{field: told[field] for field in HEAD},
        "ago_ms": round((now - kept.at) * 1000),
        "slow_by": list(kept.slow_by),
        "phases": [{"phase": p["phase"], "ms": p["ms"]} for p in told["phases"]],
        "longest_phase": worst.get("phase", ""),
        "longest_ms": worst.get("ms", 0.0),
        "longest_worker": worst.get("worker", ""),
    }


def _known(view: View) -> Iterator[Try]:
    return chain(view.tables.tries.values(), view.tables.history, view.tables.refusals)


def _resolve(view: View, asked: str) -> str:
    """The id itself, or the one id that starts so; as clients see it (`chatcmpl-…`) or bare."""
    for prefix in RESPONSE_PREFIXES:
        asked = asked.removeprefix(prefix)
    every = {each.request_id for each in _known(view)} | view.tables.recorder.ids()
    ids = sorted(each for each in every if each.startswith(asked))
    if asked in ids:
        return asked
    if not asked:
        sentence = "explain needs 'id', or list=slow, list=failed, list=refused or list=recent"
        raise BatonError(Code.INVALID_REQUEST, sentence)
    if not ids:
        kept = view.tables.settings.history
        sentence = f"no request starts with {asked[:96]!r}; the last {kept} that ended are kept"
        raise BatonError(Code.NOT_FOUND, sentence)
    if len(ids) > 1:
        named = ", ".join(ids[:NAMED_MAX])
        sentence = f"{len(ids)} requests start with {asked[:96]!r}: {named}; say more of the id"
        raise BatonError(Code.INVALID_REQUEST, sentence)
    return ids[0]


VERB = Verb(
    "explain",
    "one request's timeline: queue, placement and why, prefill, handoff, decode; or list=slow",
    (
        Arg("id", "a request id, or the start of one", default=""),
        Arg(
            "list",
            "instead: the slowest 1 %, the failures, what was refused, or the latest of all",
            default="",
            choices=("", "slow", "failed", "refused", "recent"),
        ),
        Arg("by", "what slow means", default="total", choices=tuple(BY)),
        Arg("limit", "rows at most", default=20, least=1, most=256),
    ),
    run,
)
