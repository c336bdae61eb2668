"""`baton ctl workers`: every worker and its load."""

from __future__ import annotations

from common.net.admin_rows import WorkerRow
from services.ctl.table import rows


def _kv_reserved(worker: WorkerRow) -> str:
    tokens = worker.kv_tokens_promised + worker.kv_tokens_foreign
    return f"{tokens / max(1, worker.kv_tokens_max):.0%}"


def _drafts(worker: WorkerRow) -> str:
    """The share of drafted tokens that was accepted lately, and what a step brought a stream."""
    if worker.accepted < 0:
        return "-"
    return f"{worker.accepted:.0%} accepted, {worker.tokens_per_output:.1f} tokens a step"


def _why(worker: WorkerRow) -> str:
    """Why the worker is in its state, what its health daemon says, and which pairs it is not in."""
    reasons = (
        worker.reason,
        f"becomes a {worker.becomes} worker" if worker.becomes else "",
        _role(worker),
        "it sleeps until its model needs it" if worker.state == "warm" else "",
        f"its host says {worker.verdict}: {worker.verdict_reason}" if worker.verdict else "",
        f"not paired with {', '.join(worker.not_paired_with)}" if worker.not_paired_with else "",
        f"paired with nobody: {worker.unlike}" if worker.unlike else "",
    )
    return "; ".join(reason for reason in reasons if reason)


def _role(worker: WorkerRow) -> str:
    """That it has another role than in the fleet file, and since when; empty = it has not."""
    if worker.configured_role in ("", worker.role) or not worker.role_epoch:
        return ""
    return f"{worker.configured_role} in its file, {worker.role} for {worker.role_since_s:.0f} s"


render = rows(
    {
        "NAME": "name",
        "ROLE": "role",
        "MODEL": "model",
        "STATE": "state",
        "FOR": "since_s",
        "REQUESTS": lambda worker: f"{worker.requests}/{worker.requests_max}",
        "QUEUED TOKENS": "queued_tokens",
        "KV RESERVED": _kv_reserved,
        "KV USED": lambda worker: f"{worker.kv_used:.0%}",
        "DRAFTS": _drafts,
        "WHY": _why,
    },
    empty="no worker has said hello",
    kind=WorkerRow,
)
