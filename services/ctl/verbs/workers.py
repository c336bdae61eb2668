"""`baton ctl workers`: every worker and its load."""

from __future__ import annotations

from typing import Any

from services.ctl.table import duration_of, rows
from services.ctl.verb import Verb, argument


def _kv_reserved(worker: Any) -> str:
    tokens = worker["kv_tokens_promised"] + worker["kv_tokens_foreign"]
    return f"{tokens / max(1, worker['kv_tokens_max']):.0%}"


def _why(worker: Any) -> str:
    """Why the worker is in its state, what its health daemon says, and which pairs it is not in."""
    unpaired = worker.get("not_paired_with", [])
    verdict = worker.get("verdict", "")
    reasons = (
        worker["reason"],
        f"its host says {verdict}: {worker['verdict_reason']}" if verdict else "",
        f"not paired with {', '.join(unpaired)}" if unpaired else "",
    )
    return "; ".join(reason for reason in reasons if reason)


VERB = Verb(
    "workers",
    "every worker: state, load, KV reserved and used",
    rows(
        {
            "NAME": "name",
            "ROLE": "role",
            "STATE": "state",
            "FOR": duration_of("since_s"),
            "REQUESTS": lambda worker: f"{worker['requests']}/{worker['requests_max']}",
            "QUEUED TOKENS": "queued_tokens",
            "KV RESERVED": _kv_reserved,
            "KV USED": lambda worker: f"{worker['kv_used']:.0%}",
            "WHY": _why,
        },
        empty="no worker has said hello",
    ),
    (argument("role", nargs="?", metavar="ROLE", help="only these: prefill or decode"),),
    examples=("workers decode", "workers --watch"),
)
