"""The verbs of the admin socket, in the order in which `help` lists them."""

from __future__ import annotations

from services.router.admin.verbs import (
    drain,
    events,
    evict,
    explain,
    help_,
    keys,
    kv,
    limits,
    pairs,
    policy,
    quarantine,
    reload,
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
    pairs.VERB,
    policy.VERB,
    limits.VERB,
    keys.VERB,
    reload.VERB,
    drain.VERB,
    resume.VERB,
    evict.VERB,
    quarantine.VERB,
    events.VERB,
    help_.VERB,
)
