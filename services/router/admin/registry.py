"""The verbs of this router."""

from __future__ import annotations

from services.router.admin import explain, help_, policy, requests, status, workers

VERBS = (
    status.VERB,
    workers.VERB,
    requests.VERB,
    explain.VERB,
    policy.VERB,
    help_.VERB,
)
