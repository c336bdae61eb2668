"""`events`: the router's latest log events. A client that sends the last number it has receives the
events after it; called repeatedly, this is a stream."""

from __future__ import annotations

from typing import Any

from common.net.admin_verbs import Value
from services.router.admin.verb import View


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    after, limit = args["after"], args["limit"]
    assert isinstance(after, int)
    assert isinstance(limit, int)
    return view.event_log.after(after, limit)
