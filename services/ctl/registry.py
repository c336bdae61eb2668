"""The verbs of `baton ctl`: those that the router declares, with what people are shown of their
results, and `ready`, which `baton ctl` has for itself.

A verb without a text of its own is shown as a table of all that its rows have. A verb that is not
declared is still asked, for the router may be newer.
"""

from __future__ import annotations

from common.net.admin_verbs import VERBS as DECLARED
from services.ctl.table import every_column
from services.ctl.verb import verb_of
from services.ctl.verbs import (
    drain,
    events,
    explain,
    help_,
    keys,
    kv,
    limits,
    move,
    pairs,
    policy,
    quarantine,
    ready,
    reload,
    requests,
    status,
    store,
    workers,
)

_RENDER = {
    "status": status.render,
    "workers": workers.render,
    "requests": requests.render,
    "explain": explain.render,
    "events": events.render,
    "keys": keys.render,
    "kv": kv.render,
    "store": store.render,
    "pairs": pairs.render,
    "drain": drain.render,
    "resume": drain.render,
    "role": drain.render_role,
    "move": move.render,
    "evict": drain.render,
    "quarantine": quarantine.render,
    "policy": policy.render,
    "balance": policy.render_balance,
    "limits": limits.render,
    "reload": reload.render,
    "help": help_.render,
}
_ONLY_HERE = {"events": (events.FOLLOW,), "explain": explain.LISTS}
VERBS = {ready.VERB.name: ready.VERB} | {
    name: verb_of(declared, _RENDER.get(name, every_column), _ONLY_HERE.get(name, ()))
    for name, declared in DECLARED.items()
}
