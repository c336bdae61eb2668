"""`baton ctl events`: a line per event, with its time in the reader's zone."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from services.ctl.verb import argument

FOLLOW = argument("--follow", action="store_true", help="print what is new, until Ctrl-C")


def render(result: Any) -> str:
    missed, events = result["missed"], result["events"]
    first = [f"({missed} older events are gone)"] if missed else []
    return "\n".join([*first, *map(_line, events)]) or "no event was noted yet"


def _line(event: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(event["unix_ms"] / 1000).astimezone()
    mark = "! " if event["level"] == "warning" else "  "
    request = f" [{event['request_id']}]" if event["request_id"] else ""
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {mark}{event['sentence']}{request}"
