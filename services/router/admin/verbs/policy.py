"""`policy`: shows and sets the placement policy and the rule for remote prefill."""

from __future__ import annotations

from typing import Any, get_args

from common.config import RemotePrefill
from services.router.admin.verb import Arg, Value, Verb, View
from services.router.events import PolicyChosen
from services.router.placement.policies.registry import POLICIES


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    name, remote_prefill = str(args["name"]), str(args["remote_prefill"])
    if name or remote_prefill:
        view.act(PolicyChosen(name, remote_prefill))
    placing = view.tables.placement_memory
    return {
        "policy": placing.policy.NAME,
        "remote_prefill": placing.options.remote_prefill,
        "mode": placing.options.mode,
        "policies": {policy.NAME: policy.HELP for policy in POLICIES.values()},
    }


VERB = Verb(
    "policy",
    "how workers are chosen; a name sets it at once, until the router restarts",
    (
        Arg("name", "the placement policy from now on", default="", choices=("", *POLICIES)),
        Arg(
            "remote_prefill",
            "when prompts are handed over from now on",
            default="",
            choices=("", *get_args(RemotePrefill)),
        ),
    ),
    run,
)
