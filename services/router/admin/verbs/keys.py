"""`keys`: the API keys that use the fleet now, and what each has left. The gateways' key file lists
the valid keys (`baton keys list`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from common.net.admin_verbs import KEYS_MAX, Value
from services.router.admin.verb import View
from services.router.records.states import AttemptState


def run(view: View, args: dict[str, Value]) -> list[dict[str, Any]]:
    """Keys with live requests and recently used keys with limits, the busiest first."""
    limit = args["limit"]
    assert isinstance(limit, int)
    keys = view.shared.keys
    queued: Counter[str] = Counter()
    running: Counter[str] = Counter()
    tenants: dict[str, str] = {}
    for attempt in view.shared.attempts():
        (queued if attempt.state is AttemptState.QUEUED else running)[attempt.key_id] += 1
        tenants[attempt.key_id] = attempt.tenant
    left = {str(row["key_id"]): row for row in keys.rows(KEYS_MAX)}
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
