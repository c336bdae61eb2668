"""`limits`: shows and sets the limits in force, and shows what each key has left."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from common.errors import BatonError, Code
from common.messages import KeyLimits
from common.net.admin_verbs import LIMIT_BOUNDS, UNSET, Value
from services.router.admin.verb import View
from services.router.admission.keys import OVERRIDES_MAX
from services.router.admission.limits import with_changes
from services.router.events import LimitsChosen

KEYS_SHOWN = 100
OF_KEY = ("requests_per_min", "tokens_per_min", "concurrency", "weight", "kv_budget_mib")


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    wanted = {name: int(args[name]) for name in LIMIT_BOUNDS if args[name] != UNSET}
    of_key = {name: int(args[name]) for name in OF_KEY if args[name] != UNSET}
    key_id, reset = str(args["key"]), bool(args["reset"])
    limits = with_changes(view.tables.limits, wanted)
    if (of_key or reset) and not key_id:
        names = ", ".join(of_key) or "reset"
        raise BatonError(Code.INVALID_REQUEST, f"limits: {names} is of one key; name it with key=")
    if of_key and reset:
        raise BatonError(Code.INVALID_REQUEST, "limits: set a key's limits or reset them, not both")
    key_limits = _of_key(view, key_id, of_key) if of_key else None
    if wanted or of_key or reset:
        chosen = LimitsChosen(limits, key_id if of_key or reset else "", key_limits)
        view.act(chosen)
    return _shown(view, key_id)


def _of_key(view: View, key_id: str, changes: dict[str, int]) -> KeyLimits:
    overrides = view.shared.keys.overrides
    if key_id not in overrides and len(overrides) >= OVERRIDES_MAX:
        raise BatonError(
            Code.INVALID_REQUEST, f"{OVERRIDES_MAX} keys have limits set here; reset one first"
        )
    before = overrides.get(key_id, KeyLimits())
    return msgspec.structs.replace(before, **changes)


def _shown(view: View, key_id: str) -> dict[str, Any]:
    tables = view.tables
    keys = view.shared.keys
    overrides = {
        name: msgspec.structs.asdict(limits)
        for name, limits in keys.overrides.items()
        if not key_id or name == key_id
    }
    rows = [row for row in keys.rows(KEYS_SHOWN) if not key_id or row["key_id"] == key_id]
    return {"limits": asdict(tables.limits), "set_here": overrides, "keys": rows}
