"""What each verb of the admin socket does, by its name in `common/net/admin_verbs.py`."""

from __future__ import annotations

from services.router.admin.verb import Run
from services.router.admin.verbs import (
    adapter,
    drain,
    events,
    evict,
    explain,
    help_,
    keys,
    kv,
    limits,
    move,
    pairs,
    policy,
    quarantine,
    reload,
    requests,
    status,
    store,
    workers,
)

RUN: dict[str, Run] = {
    "adapter": adapter.run,
    "balance": policy.balance,
    "drain": drain.run,
    "events": events.run,
    "evict": evict.run,
    "explain": explain.run,
    "help": help_.run,
    "keys": keys.run,
    "kv": kv.run,
    "limits": limits.run,
    "move": move.run,
    "pairs": pairs.run,
    "policy": policy.run,
    "quarantine": quarantine.run,
    "reload": reload.run,
    "requests": requests.run,
    "resume": drain.resume,
    "role": drain.role,
    "status": status.run,
    "store": store.run,
    "workers": workers.run,
}
