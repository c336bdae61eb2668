"""`keys`: which API keys use the fleet now, and what each has left. Who may ask at all is in the
gateways' key file (`baton keys list`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from services.router.admin.verb import Arg, Value, Verb, View
from services.router.state import TryState

ROWS_MAX = 1_000


def run(view: View, args: dict[str, Value]) -> list[dict[str, Any]]:
    """Of keys with requests here, and of those used lately that have limits; the busiest first."""
    limit = args["limit"]
    assert isinstance(limit, int)
    tables = view.tables
    keys = tables.admission.keys
    queued: Counter[str] = Counter()
    running: Counter[str] = Counter()
    tenants: dict[str, str] = {}
    for each in tables.tries.values():
        (queued if each.state is TryState.QUEUED else running)[each.key_id] += 1
        tenants[each.key_id] = each.tenant
    left = {str(row["key_id"]): row for row in keys.shown(ROWS_MAX)}
    names = sorted({*queued, *running, *left}, key=lambda key: (-queued[key] - running[key], key))
    return [
        {
            "key_id": name,
            "tenant": tenants.get(name, ""),
            "running": running[name],
            "queued": queued[name],
            "requests_left": left.get(name, {}).get("requests_left"),
            "cost_left": left.get(name, {}).get("cost_left"),
            "limits_set_here": name in keys.overrides,
        }
        for name in names[:limit]
    ]


VERB = Verb(
    "keys",
    "API keys in use: requests running and queued, and what is left of each one's limits",
    (Arg("limit", "rows at most", default=100, least=1, most=ROWS_MAX),),
    run,
)
