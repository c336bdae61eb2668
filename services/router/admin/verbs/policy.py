"""`policy`: shows and sets the placement policy and the rule for remote prefill."""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from common.net.admin_verbs import Value
from services.router.admin.verb import View
from services.router.events import PolicyChosen
from services.router.placement.policies.registry import POLICIES


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    name, remote_prefill = str(args["name"]), str(args["remote_prefill"])
    if name not in ("", *POLICIES):
        raise BatonError(
            Code.INVALID_REQUEST, f"policy: name must be one of: {', '.join(POLICIES)}"
        )
    if name or remote_prefill:
        view.act(PolicyChosen(name, remote_prefill))
    placing = view.tables.placement_memory
    return {
        "policy": placing.policy.NAME,
        "remote_prefill": placing.options.remote_prefill,
        "mode": placing.options.mode,
        "policies": {policy.NAME: policy.HELP for policy in POLICIES.values()},
    }
