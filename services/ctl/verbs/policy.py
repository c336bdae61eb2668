"""`baton ctl policy`: how workers are chosen."""

from __future__ import annotations

from typing import Any

from services.ctl.table import fields, table
from services.ctl.verb import Verb, argument


def render(result: Any) -> str:
    in_force = [
        (key.replace("_", " "), result[key]) for key in ("policy", "remote_prefill", "mode")
    ]
    policies = [
        ("*" if name == result["policy"] else " ", name, help_)
        for name, help_ in result["policies"].items()
    ]
    return f"{fields(in_force)}\n\n{table(('', 'POLICY', 'WHO IS CHOSEN'), policies)}"


VERB = Verb(
    "policy",
    "how workers are chosen, and which policies there are; a name sets it now",
    render,
    (
        argument("name", nargs="?", metavar="NAME", help="the placement policy from now on"),
        argument("--remote-prefill", metavar="WHEN", help="set it: auto, always or never"),
    ),
    examples=("policy", "policy round_robin  # until the router restarts"),
)
