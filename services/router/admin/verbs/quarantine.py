"""`quarantine`: shows and clears the breakers of pairs and the prompts that killed workers."""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from common.identity import name_of
from common.messages import Role
from common.net.admin_verbs import Value
from services.router.admin import pair_rows
from services.router.admin.verb import View
from services.router.events import PairsCleared, PromptsCleared


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    prefill, decode = str(args["prefill"]), str(args["decode"])
    chosen = [row for row in pair_rows.rows(view.shared, view.now) if _fits(row, prefill, decode)]
    for role, name in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        if name and not chosen:
            _check_known(view, role, name)
    prompt = str(args["prompt"])
    prompts = [row for row in _prompts(view) if prompt in ("", row["digest"])]
    if args["action"] == "clear":
        if not prompt:
            view.act(PairsCleared(prefill, decode))
        if not prefill and not decode:
            for row in prompts:
                view.act(PromptsCleared(bytes.fromhex(row["digest"])))
        pairs = pair_rows.rows(view.shared, view.now)
        return {"cleared": 0 if prompt else len(chosen), "pairs": pairs, "prompts": _prompts(view)}
    return {"cleared": 0, "pairs": chosen, "prompts": prompts}


def _prompts(view: View) -> list[dict[str, Any]]:
    return [
        {
            "digest": row.digest.hex(),
            "request_id": row.request_id,
            "workers": [name_of(identity) for identity in row.workers],
            "left_s": round(row.until - view.now, 1),
            "refused": row.refused,
        }
        for tables in view.shared.models.values()
        for row in tables.quarantine.rows(view.now)
    ]


def _fits(row: dict[str, Any], prefill: str, decode: str) -> bool:
    return prefill in ("", row["prefill"]) and decode in ("", row["decode"])


def _check_known(view: View, role: Role, name: str) -> None:
    """Raises BatonError(NOT_FOUND)."""
    names = sorted({w.name for w in view.shared.workers() if role in w.role.parts})
    if name not in names:
        known = ", ".join(names) or "none"
        raise BatonError(Code.NOT_FOUND, f"no {role} worker {name[:64]!r}; there are: {known}")
