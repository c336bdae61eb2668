"""How each verb is asked and shown. A verb that this `baton` does not know is still asked, and its
answer printed as JSON: the router may be newer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.ctl.verbs import (
    drain,
    events,
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
    status,
    workers,
)


@dataclass(frozen=True, slots=True)
class Shown:
    """`positional`: names of the arguments that may be given without `name=`."""

    positional: tuple[str, ...]
    render: Callable[[Any], str]


VERBS: dict[str, Shown] = {
    "status": Shown((), status.render),
    "workers": Shown(("role",), workers.render),
    "requests": Shown(("state",), requests.render),
    "explain": Shown(("id",), explain.render),
    "kv": Shown(("worker",), kv.render),
    "pairs": Shown((), pairs.render),
    "policy": Shown(("name",), policy.render),
    "limits": Shown((), limits.render),
    "keys": Shown((), keys.render),
    "reload": Shown((), reload.render),
    "drain": Shown(("worker",), drain.render),
    "resume": Shown(("worker",), drain.render),
    "evict": Shown(("worker",), drain.render),
    "quarantine": Shown(("action",), quarantine.render),
    "events": Shown((), events.render),
    "help": Shown(("verb",), help_.render),
}
