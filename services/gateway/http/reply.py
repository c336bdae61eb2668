"""Headers that every answer carries: whose request it was, and how long it took.

`server-timing` on a whole answer says `total`, on a stream `first-token`, since its headers leave
with the first token; milliseconds from the end of the request's headers, measured here. What was
generated adds its phases (`streams/timing.py`), which sum to that.
`traceparent` comes back with the client's trace id and a span id of ours, taken from the request id
that `baton ctl explain` knows, so that a trace leads there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from common.trace import span_id

TRACE = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
NOTHING = frozenset({"0" * 32, "0" * 16})


def checked_trace(given: str | None) -> str:
    """The client's, or empty where it gave none or one that is not W3C's."""
    match = TRACE.fullmatch(given) if given is not None else None
    return "" if given is None or match is None or NOTHING & set(match.groups()) else given


def traceparent(given: str | None, request_id: str) -> str | None:
    """Ours, as a child of the client's; None where that is of no use."""
    trace = checked_trace(given)
    if not trace:
        return None
    version, trace_id, _, flags = trace.split("-")
    return f"{version}-{trace_id}-{span_id(request_id)}-{flags}"


def server_timing(name: str, phases: Mapping[str, float]) -> str:
    """`phases`: milliseconds; one alone has nothing to add to the sum."""
    told = {name: sum(phases.values()), **(phases if len(phases) > 1 else {})}
    return ", ".join(f"{each};dur={ms:.2f}" for each, ms in told.items())
