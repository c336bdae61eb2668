"""The verbs of this router."""

from __future__ import annotations

from services.router.admin import (
    drain,
    evict,
    explain,
    help_,
    kv,
    limits,
    policy,
    quarantine,
    requests,
    resume,
    status,
    workers,
)

VERBS = (
    status.VERB,
    workers.VERB,
    requests.VERB,
    explain.VERB,
    kv.VERB,
    policy.VERB,
    limits.VERB,
    drain.VERB,
    resume.VERB,
    evict.VERB,
    quarantine.VERB,
    help_.VERB,
)
