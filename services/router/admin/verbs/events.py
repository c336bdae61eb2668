"""`events`: the router's latest log events. A client that sends the last number it has receives the
events after it; called repeatedly, this is a stream."""

from __future__ import annotations

from typing import Any

from services.router.admin.event_log import EVENTS_MAX
from services.router.admin.verb import Arg, Value, Verb, View

LATEST = -1


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    after, limit = args["after"], args["limit"]
    assert isinstance(after, int)
    assert isinstance(limit, int)
    return view.event_log.after(after, limit)


VERB = Verb(
    "events",
    "the router's latest notes; after=N: those after the one with this number",
    (
        Arg("after", "the number of the last one seen", default=LATEST, least=-1, most=1 << 53),
        Arg("limit", "events at most", default=50, least=1, most=EVENTS_MAX),
    ),
    run,
)
