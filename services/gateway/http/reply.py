"""Headers that every answer has: the request's id, and how long it took.

`server-timing` has `total` on a complete answer and `first-token` on a stream, whose headers leave
with the first token. Both are milliseconds since the end of the request's head, measured here. A
generation adds its phases (`streams/phase_timer.py`), which sum to that.
`traceparent` comes back with the client's trace id and a span id of ours. The span id is made from
the request id that `baton ctl explain` knows, so that a trace leads there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from common.telemetry.trace import span_id

TRACE = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
NOTHING = frozenset({"0" * 32, "0" * 16})


def checked_trace(given: str | None) -> str:
    """The client's traceparent; empty where it gave none or one that is not in W3C's form."""
    match = TRACE.fullmatch(given) if given is not None else None
    return "" if given is None or match is None or NOTHING & set(match.groups()) else given


def traceparent(given: str | None, request_id: str) -> str | None:
    """Ours, as a child of the client's; None where the client gave none that is valid."""
    trace = checked_trace(given)
    if not trace:
        return None
    version, trace_id, _, flags = trace.split("-")
    return f"{version}-{trace_id}-{span_id(request_id)}-{flags}"


def server_timing(name: str, phases: Mapping[str, float]) -> str:
    """`phases`: milliseconds by name; a single one is left out because it equals the sum."""
    durations = {name: sum(phases.values()), **(phases if len(phases) > 1 else {})}
    return ", ".join(f"{metric};dur={ms:.2f}" for metric, ms in durations.items())
