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
from services.router.tables import SharedTables, Tables
from services.router.timeline.record import make_record

SUMMARY_WAIT_SECONDS = 5.0


def on_request_summary(
    shared: SharedTables, gateway: Gateway, summary: RequestSummary, now: float
) -> list[Action]:
    """Only the summary of a gateway's own request counts."""
    request_id = summary.request_id
    known = shared.attempts_over(request_id, summary.attempt)
    holder = shared.holder_of_request(request_id)
    if holder is not None:
        known.append(holder.attempts[request_id, holder.newest[request_id]])
    if not any(attempt.gateway == gateway.identity for attempt in known):
        shared.counts.drop("summary of an unknown request")
        return []
    shared.recorder.add_summary(summary)
    shared.recorder.schedule(request_id, now)
    return []


def record_end(tables: Tables, attempt: Attempt, now: float) -> None:
    """An attempt left the tables; perhaps its request is over."""
    final = attempt.state is AttemptState.REFUSED and attempt.number == 1
    tables.recorder.schedule(attempt.request_id, now if final else now + SUMMARY_WAIT_SECONDS)


def make_due_records(shared: SharedTables, now: float) -> list[Action]:
    """The records of the requests of which nothing more will be reported."""
    pending, summaries = shared.recorder.pending, shared.recorder.summaries
    due = [
        request_id
        for request_id, at in pending.items()
        if shared.holder_of_request(request_id) is None and (request_id in summaries or now >= at)
    ]
    return [action for request_id in due for action in _record(shared, request_id, now)]


def _record(shared: SharedTables, request_id: str, now: float) -> list[Action]:
    del shared.recorder.pending[request_id]
    attempts = shared.attempts_over(request_id)
    if not attempts:
        return []
    record = make_record(shared.recorder.summaries.get(request_id), attempts, now)
    shared.recorder.keep(record, now)
    return [Recorded(record)]
