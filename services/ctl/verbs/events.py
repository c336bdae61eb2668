"""`baton ctl events`, for people: a line each, the time in the reader's zone."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def render(result: Any) -> str:
    return "\n".join(lines(result)) or "nothing was noted yet"


def lines(result: Any) -> list[str]:
    missed = result["missed"]
    first = [f"({missed} older events are gone)"] if missed else []
    return [*first, *[_line(event) for event in result["events"]]]


def _line(event: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(event["unix_ms"] / 1000).astimezone()
    mark = "! " if event["level"] == "warning" else "  "
    of = f" [{event['request_id']}]" if event["request_id"] else ""
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {mark}{event['sentence']}{of}"
