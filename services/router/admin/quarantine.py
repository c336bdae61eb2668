"""`quarantine`: the pairs that do not hand KV over now, and why; clears them."""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from common.messages import Role
from services.router.admin import pair_rows
from services.router.admin.verb import Arg, Value, Verb, View
from services.router.events import PairsCleared


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    prefill, decode = str(args["prefill"]), str(args["decode"])
    chosen = [row for row in pair_rows.rows(view.tables, view.now) if _fits(row, prefill, decode)]
    for role, name in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        if name and not chosen:
            _check_known(view, role, name)
    if args["action"] == "clear":
        view.act(PairsCleared(prefill, decode))
        return {"cleared": len(chosen), "pairs": pair_rows.rows(view.tables, view.now)}
    return {"cleared": 0, "pairs": chosen}


def _fits(row: dict[str, Any], prefill: str, decode: str) -> bool:
    return prefill in ("", row["prefill"]) and decode in ("", row["decode"])


def _check_known(view: View, role: Role, name: str) -> None:
    """Raises BatonError(NOT_FOUND)."""
    names = sorted({w.name for w in view.tables.workers.values() if w.role is role})
    if name not in names:
        known = ", ".join(names) or "none"
        raise BatonError(Code.NOT_FOUND, f"no {role} worker {name[:64]!r}; there are: {known}")


VERB = Verb(
    "quarantine",
    "pairs that had trouble handing KV over; clear lets them try again at once",
    (
        Arg("action", "list, or clear", default="list", choices=("list", "clear")),
        Arg("prefill", "only pairs of this prefill worker", default=""),
        Arg("decode", "only pairs of this decode worker", default=""),
    ),
    run,
)
