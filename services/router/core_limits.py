"""Limits that an operator sets while the router runs. Called by `core.py` only; the admin verb has
checked them."""

from __future__ import annotations

from common.errors import Code
from services.router import core_requests
from services.router.events import Action, LimitsChosen, Note
from services.router.tables import Tables


def choose(tables: Tables, event: LimitsChosen, now: float) -> list[Action]:
    """In force at once. What a smaller queue has no room for is refused, the newest first; what a
    lower `max_active` would not have placed goes on."""
    tables.limits = event.limits
    tables.active_before = tables.active
    tables.waiting.bound(event.limits.max_queue, event.limits.queue_bytes_max)
    keys = tables.admission.keys
    if event.key_id and event.key_limits is None:
        keys.overrides.pop(event.key_id, None)
    elif event.key_id and event.key_limits is not None:
        keys.overrides[event.key_id] = event.key_limits
    actions: list[Action] = []
    for each in reversed(list(tables.waiting)):
        if tables.waiting.within_bounds():
            break
        sentence = "an operator made the queue smaller"
        actions += core_requests.refuse(tables, each, Code.QUEUE_FULL, sentence, now)
    tables.freed = True
    what = f" and of key {event.key_id}" if event.key_id else ""
    sentence = f"an operator chose: limits {event.limits}{what}"
    return [*actions, Note("info", "limits.chosen", sentence)]
