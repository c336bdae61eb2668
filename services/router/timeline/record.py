"""Makes the record of a request that is over. A line of the timeline file holds it, the flight
recorder keeps it, and spans are made of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from common.identity import name_of
from common.messages import RequestSummary
from common.telemetry.timeline import Phase, TimelineRecord
from services.router.records.attempt import Attempt
from services.router.records.states import AttemptState
from services.router.timeline.attempt_story import attempt_records
from services.router.timeline.phases import legs_of, phases_of

LOST = "lost"


def make_record(
    summary: RequestSummary | None, attempts: Sequence[Attempt], now: float
) -> TimelineRecord:
    """`attempts`: those that are known, oldest first, at least one. Without a summary of the
    gateway, the outcome is `refused`, or `lost` if nobody knows what the client received."""
    last = attempts[-1]
    legs = list(summary.legs) if summary is not None else legs_of(attempts)
    phases = phases_of(legs, {attempt.number: attempt for attempt in attempts})
    tokens, ttft = _answer(summary, last, phases)
    return TimelineRecord(
        request_id=last.request_id,
        model=last.model,
        outcome=_outcome(summary, last),
        code=summary.code if summary is not None else last.outcome,
        sentence=last.sentence,
        total_ms=round(sum(phase.ms for phase in phases), 3),
        ttft_ms=round(ttft, 3),
        tpot_ms=_tpot_ms(phases, tokens),
        itl_ms_max=round(summary.itl_ms_max, 3) if summary is not None else 0.0,
        prompt_tokens=attempts[0].request.prompt_tokens,
        completion_tokens=tokens,
        cached_tokens=summary.cached_tokens if summary is not None else 0,
        tenant=last.tenant,
        key_id=last.key_id,
        priority=last.priority.name.lower(),
        gateway=name_of(last.gateway),
        moves=last.number - 1,
        traceparent=summary.traceparent if summary is not None else "",
        phases=tuple(phases),
        attempts=tuple(
            msgspec.structs.replace(record, received_ms_ago=UNSET)
            for record in attempt_records(attempts, now)
        ),
    )


def _outcome(summary: RequestSummary | None, last: Attempt) -> str:
    if summary is not None:
        return summary.outcome
    return "refused" if last.state is AttemptState.REFUSED else LOST


def _answer(
    summary: RequestSummary | None, last: Attempt, phases: Sequence[Phase]
) -> tuple[int, float]:
    """Tokens that the client received, and milliseconds until the first of them."""
    if summary is not None:
        return summary.completion_tokens, summary.ttft_ms
    tokens = last.end_report.completion_tokens if last.end_report is not None else 0
    first = next((phase.start_ms for phase in phases if phase.phase == "decode"), 0.0)
    return tokens, first


def _tpot_ms(phases: Sequence[Phase], tokens: int) -> float:
    """Milliseconds for each token after the first, pauses included; 0 for a single token."""
    start = next((phase.start_ms for phase in phases if phase.phase == "decode"), None)
    if start is None or tokens < 2:
        return 0.0
    end = phases[-1].start_ms + phases[-1].ms
    return round((end - start) / (tokens - 1), 3)
