"""When a request's record is made. Called by `core.py` and `core_requests.py` only.

A request is over here when its last attempt is, and there when its gateway says so; the two come by
different ways, in any order. Its record waits for both, for the gateway's word at most
`WORD_SECONDS`: one that was refused at once has none to wait for, and one whose gateway died never
gets it. Without reports nothing else in the router would change.
"""

from __future__ import annotations

from common.messages import Journey
from services.router.events import Action, Recorded
from services.router.records import Gateway, Try
from services.router.state import TryState
from services.router.tables import Tables
from services.router.timeline.record import record

WORD_SECONDS = 5.0


def told(tables: Tables, gateway: Gateway, journey: Journey, now: float) -> None:
    """A gateway's word on a request of its own."""
    live = tables.current.get(journey.request_id)
    known = attempts(tables, journey.request_id, journey.attempt)
    if live is not None:
        known.append(tables.tries[journey.request_id, live])
    if not any(each.gateway == gateway.identity for each in known):
        tables.counts.drop("journey of an unknown request")
        return
    tables.recorder.told(journey)
    tables.recorder.over(journey.request_id, now)


def tick(tables: Tables, now: float) -> list[Action]:
    """The records of those that nothing more is to come of."""
    pending, journeys = tables.recorder.pending, tables.recorder.journeys
    due = [
        request_id
        for request_id, at in pending.items()
        if request_id not in tables.current and (request_id in journeys or now >= at)
    ]
    return [action for request_id in due for action in _record(tables, request_id, now)]


def attempts(tables: Tables, request_id: str, last: int = 0) -> list[Try]:
    """Those that are over and still known, oldest first. `last`: the highest there may be."""
    latest = tables.history.latest(request_id)
    highest = max(last, latest.attempt if latest is not None else 1)
    keys = [(request_id, attempt) for attempt in range(1, min(highest, 64) + 1)]
    found = [tables.history.find(key) or tables.refusals.find(key) for key in keys]
    return [each for each in found if each is not None]


def over(tables: Tables, each: Try, now: float) -> None:
    """An attempt left the tables. What was refused at first is complete."""
    final = each.state is TryState.REFUSED and each.attempt == 1
    tables.recorder.over(each.request_id, now if final else now + WORD_SECONDS)


def _record(tables: Tables, request_id: str, now: float) -> list[Action]:
    del tables.recorder.pending[request_id]
    tries = attempts(tables, request_id)
    if not tries:
        return []
    made = record(tables.recorder.journeys.get(request_id), tries, now)
    tables.recorder.keep(made, now)
    return [Recorded(made)]
