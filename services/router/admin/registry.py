"""The verbs of this router."""

from __future__ import annotations

from services.router.admin import explain, help_, kv, limits, policy, requests, status, workers

VERBS = (
    status.VERB,
    workers.VERB,
    requests.VERB,
    explain.VERB,
    kv.VERB,
    policy.VERB,
    limits.VERB,
    help_.VERB,
)
