"""The one record of a request that is over: a flat head to search by, its phases, its attempts.

This is what a line of the timeline file holds, what the flight recorder keeps and what spans are
made of. It has ids, names, counts and times; never prompt or completion text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.messages import Journey
from services.router.records import Try
from services.router.state import TryState
from services.router.timeline.attempts import attempt_of
from services.router.timeline.phases import Phase, legs_of, phases

Record = dict[str, Any]
LOST = "lost"


def record(journey: Journey | None, tries: Sequence[Try], now: float) -> Record:
    """`tries`: those that are known, oldest first, at least one. Without a journey, `outcome` is
    `refused`, or `lost`: nobody told how it ended for the client."""
    last = tries[-1]
    legs = list(journey.legs) if journey is not None else legs_of(tries)
    told = phases(legs, {each.attempt: each for each in tries})
    tokens, ttft = _made(journey, last, told)
    total = sum(phase.ms for phase in told)
    return {
        "request_id": last.request_id,
        "outcome": _outcome(journey, last),
        "code": journey.code if journey is not None else last.outcome,
        "sentence": last.sentence,
        "total_ms": round(total, 3),
        "ttft_ms": round(ttft, 3),
        "tpot_ms": _pace(told, tokens),
        "itl_ms_max": round(journey.itl_ms_max, 3) if journey is not None else 0.0,
        "prompt_tokens": tries[0].ask.prompt_tokens,
        "completion_tokens": tokens,
        "cached_tokens": journey.cached_tokens if journey is not None else 0,
        "tenant": last.tenant,
        "key_id": last.key_id,
        "priority": last.priority.name.lower(),
        "gateway": last.gateway.rpartition("|")[0],
        "moves": last.attempt - 1,
        "traceparent": journey.traceparent if journey is not None else "",
        "phases": [phase._asdict() for phase in told],
        "attempts": [_attempt(each, now) for each in tries],
    }


def longest(told: Record) -> dict[str, Any]:
    """The phase that took most of it."""
    found: dict[str, Any] = max(told["phases"], key=lambda phase: phase["ms"], default={})
    return found


def _attempt(each: Try, now: float) -> dict[str, Any]:
    told = attempt_of(each, now)
    del told["received_ms_ago"]
    return told


def _outcome(journey: Journey | None, last: Try) -> str:
    if journey is not None:
        return journey.outcome
    return "refused" if last.state is TryState.REFUSED else LOST


def _made(journey: Journey | None, last: Try, told: Sequence[Phase]) -> tuple[int, float]:
    """Tokens that the client has, and milliseconds until its first."""
    if journey is not None:
        return journey.completion_tokens, journey.ttft_ms
    tokens = last.end_report.completion_tokens if last.end_report is not None else 0
    first = next((phase.start_ms for phase in told if phase.phase == "decode"), 0.0)
    return tokens, first


def _pace(told: Sequence[Phase], tokens: int) -> float:
    """Milliseconds for each token after the first, pauses included; 0 for a single one."""
    start = next((phase.start_ms for phase in told if phase.phase == "decode"), None)
    if start is None or tokens < 2:
        return 0.0
    end = told[-1].start_ms + told[-1].ms
    return round((end - start) / (tokens - 1), 3)
