"""When the record of a request is made.

A request is over for the router when its last attempt is, and over for its gateway when the gateway
sends its summary. Either may come first. The record waits for both, but for the summary at most
`SUMMARY_WAIT_SECONDS`: a gateway that died never sends one. A request whose first attempt was
refused has no summary to wait for. Records influence no decision.
"""

from __future__ import annotations

from common.messages import RequestSummary
from services.router.events import Action, Recorded
from services.router.records.attempt import Attempt
from services.router.records.gateway import Gateway
from services.router.records.states import AttemptState
from services.router.tables import Tables
from services.router.timeline.record import make_record

SUMMARY_WAIT_SECONDS = 5.0


def on_request_summary(
    tables: Tables, gateway: Gateway, summary: RequestSummary, now: float
) -> list[Action]:
    """Only the summary of a gateway's own request counts."""
    live = tables.newest.get(summary.request_id)
    known = tables.attempts_over(summary.request_id, summary.attempt)
    if live is not None:
        known.append(tables.attempts[summary.request_id, live])
    if not any(attempt.gateway == gateway.identity for attempt in known):
        tables.counts.drop("summary of an unknown request")
        return []
    tables.recorder.add_summary(summary)
    tables.recorder.schedule(summary.request_id, now)
    return []


def record_end(tables: Tables, attempt: Attempt, now: float) -> None:
    """An attempt left the tables; perhaps its request is over."""
    final = attempt.state is AttemptState.REFUSED and attempt.number == 1
    tables.recorder.schedule(attempt.request_id, now if final else now + SUMMARY_WAIT_SECONDS)


def make_due_records(tables: Tables, now: float) -> list[Action]:
    """The records of the requests of which nothing more will be reported."""
    pending, summaries = tables.recorder.pending, tables.recorder.summaries
    due = [
        request_id
        for request_id, at in pending.items()
        if request_id not in tables.newest and (request_id in summaries or now >= at)
    ]
    return [action for request_id in due for action in _record(tables, request_id, now)]


def _record(tables: Tables, request_id: str, now: float) -> list[Action]:
    del tables.recorder.pending[request_id]
    attempts = tables.attempts_over(request_id)
    if not attempts:
        return []
    record = make_record(tables.recorder.summaries.get(request_id), attempts, now)
    tables.recorder.keep(record, now)
    return [Recorded(record)]
