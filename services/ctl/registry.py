"""The verbs that this version declares, in the order in which `baton ctl --help` lists them.

A verb that is not among them is still asked, and its result printed as JSON: the router may be
newer.
"""

from __future__ import annotations

from services.ctl.verbs import (
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
    ready,
    reload,
    requests,
    resume,
    status,
    workers,
)

_MODULES = (
    *(status, ready, workers, requests, explain, events, keys, kv, pairs),
    *(drain, resume, evict, quarantine, policy, limits, reload, help_),
)
VERBS = {module.VERB.name: module.VERB for module in _MODULES}
