"""`baton ctl limits`: the limits in force; sets them."""

from __future__ import annotations

from typing import Any

from services.ctl.table import fields, rows
from services.ctl.verb import Verb, argument, value

_keys = rows(
    {
        "KEY": "key_id",
        "RUNNING": "live",
        "REQUESTS LEFT": "requests_left",
        "COST LEFT": "cost_left",
    },
    empty="",
)
LIMITS = {
    "max-active": "requests placed at once, 0: all slots",
    "max-queue": "requests waiting",
    "queue-bytes-max": "bytes of waiting requests",
    "ttft-slo-ms": "TTFT that admission promises, 0: none",
    "requests-per-min": "of the key, 0: no limit",
    "tokens-per-min": "of the key, in predicted cost, 0: no limit",
    "concurrency": "requests of the key at once, 0: no limit",
    "weight": "share of the key's tenant, relative to others",
}


def render(result: Any) -> str:
    parts = [fields(list(result["limits"].items()))]
    for key, limits in result["set_here"].items():
        settings = ", ".join(f"{name} {limit:g}" for name, limit in limits.items())
        parts.append(f"set here for key {key}: {settings}")
    return "\n\n".join([*parts, _keys(result["keys"])]).rstrip()


VERB = Verb(
    "limits",
    "the limits in force and what keys have left; a value sets it until the router restarts",
    render,
    (
        *(argument(f"--{n}", type=value, metavar="N", help=about) for n, about in LIMITS.items()),
        argument("--key", metavar="ID", help="the API key that the four above are of"),
        argument("--reset", action="store_true", help="back to what the key's file says"),
    ),
    examples=("limits max_queue=2000", "limits key=3f9a12c44d01 concurrency=4"),
)
