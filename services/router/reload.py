"""The keys of `[router]` that a running router takes over when its file is read again. Pure.

They become the same events as an operator's orders. A key that did not change in the file keeps its
value, so that a reload does not undo what `baton ctl` set.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from common.config import RouterConfig
from services.router.admission.limits import Limits
from services.router.events import Event, LimitsChosen, PolicyChosen

LIMIT_KEYS = frozenset(
    {"router.max_active", "router.max_queue", "router.queue_bytes_max", "router.ttft_slo_ms"}
)
PLACEMENT_KEYS = frozenset({"router.policy", "router.remote_prefill"})
KEYS = LIMIT_KEYS | PLACEMENT_KEYS


def orders(router: RouterConfig, changed: tuple[str, ...], limits: Limits) -> list[Event]:
    """The events that put these changed keys in force. `limits`: those in force now."""
    events: list[Event] = []
    if LIMIT_KEYS.intersection(changed):
        file = msgspec.structs.asdict(router)
        names = [key.removeprefix("router.") for key in LIMIT_KEYS.intersection(changed)]
        events.append(LimitsChosen(replace(limits, **{name: file[name] for name in names})))
    if PLACEMENT_KEYS.intersection(changed):
        events.append(
            PolicyChosen(
                router.policy if "router.policy" in changed else "",
                router.remote_prefill if "router.remote_prefill" in changed else "",
            )
        )
    return events
