"""While decode KV is short, the lowest class gives its place up. Called by `core.py` only.

The newest of it is preempted: its gateway submits it again, and it goes on after what its client
has already, when there is room. One that streams is taken only if its gateway can go on with it
exactly (`Submit.resumable`). One at each Tick, since what it frees shows in the next reports.
"""

from __future__ import annotations

from common.errors import Code
from common.messages import Failed, PriorityClass
from services.router import core_requests
from services.router.events import Action, Note, Send
from services.router.placement_types import WaitFor
from services.router.records import Try
from services.router.state import TryState
from services.router.tables import Tables

LOWEST = max(PriorityClass)
SHORT_OF = (WaitFor.KV, WaitFor.SLOT)


def make_room(tables: Tables, now: float) -> list[Action]:
    """For a higher class whose first request waits for decode."""
    state = tables.admission
    if state.kv_used <= state.config.kv_yield or not len(tables.waiting):
        return []
    first = tables.waiting.head()
    if first.priority is LOWEST or first.waits_for not in SHORT_OF:
        return []
    victim = _newest(tables)
    if victim is None:
        return []
    sentence = (
        f"{state.kv_used:.0%} of the decode workers' KV is in use, and a request of class "
        f"{first.priority.name.lower()} waits for it; this one goes on later"
    )
    failed = Failed(
        request_id=victim.request_id,
        attempt=victim.attempt,
        code=Code.PREEMPTED,
        message=sentence,
    )
    fields: dict[str, object] = {"request_id": victim.request_id}
    return [
        *core_requests.abort(tables, victim, sentence, now),
        Send(victim.gateway, failed),
        Note("info", "request.yielded", sentence, fields),
    ]


def _newest(tables: Tables) -> Try | None:
    """Of the lowest class, on a worker, and such that nothing is lost."""
    for each in reversed(tables.tries.values()):
        free = each.state is TryState.PLACED
        if each.priority is LOWEST and (free or _may_pause(each)):
            return each
    return None


def _may_pause(each: Try) -> bool:
    return each.state is TryState.DECODING and each.resumable
