"""Which keys of `[router]` a running router takes from a file read again, and how. Pure.

They go the way of an operator's orders, as events into the core. A key that did not change in the
file is left as it is, so that a reload does not undo what `baton ctl` set.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from common.config import RouterConfig
from services.router.admission.limits import Limits
from services.router.events import Event, LimitsChosen, PolicyChosen

OF_LIMITS = frozenset(
    {"router.max_active", "router.max_queue", "router.queue_bytes_max", "router.ttft_slo_ms"}
)
OF_PLACING = frozenset({"router.policy", "router.remote_prefill"})
KEYS = OF_LIMITS | OF_PLACING


def orders(router: RouterConfig, changed: tuple[str, ...], limits: Limits) -> list[Event]:
    """What puts these changed keys in force; `limits` are those in force now."""
    events: list[Event] = []
    if OF_LIMITS.intersection(changed):
        file = msgspec.structs.asdict(router)
        names = [key.removeprefix("router.") for key in OF_LIMITS.intersection(changed)]
        events.append(LimitsChosen(replace(limits, **{name: file[name] for name in names})))
    if OF_PLACING.intersection(changed):
        events.append(
            PolicyChosen(
                router.policy if "router.policy" in changed else "",
                router.remote_prefill if "router.remote_prefill" in changed else "",
            )
        )
    return events
