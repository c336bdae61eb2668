"""`events`: what the router noted, as its log has it. Asked again with the last number, it goes on
from there: that is the stream."""

from __future__ import annotations

from typing import Any

from services.router.admin.verb import Arg, Value, Verb, View
from services.router.recent import KEPT_MAX

LATEST = -1


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    after, limit = args["after"], args["limit"]
    assert isinstance(after, int)
    assert isinstance(limit, int)
    return view.recent.after(after, limit)


VERB = Verb(
    "events",
    "the router's latest notes; after=N: those after the one with this number",
    (
        Arg("after", "the number of the last one seen", default=LATEST, least=-1, most=1 << 53),
        Arg("limit", "events at most", default=50, least=1, most=KEPT_MAX),
    ),
    run,
)
