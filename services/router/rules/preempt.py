"""Preemption: while decode KV is short, the newest request of the lowest class makes room.

Its gateway submits it again, and it goes on after the tokens that its client already has once there
is room. A request that streams is preempted only if its gateway can continue it exactly
(`Submit.resumable`). At most one is preempted at each Tick, because the KV that it frees shows only
in the next reports.
"""

from __future__ import annotations

from common.errors import Code
from common.messages import PriorityClass
from services.router.events import Action, Note
from services.router.placement.types import WaitFor
from services.router.records.attempt import Attempt
from services.router.records.states import AttemptState
from services.router.rules import attempt_lifecycle
from services.router.tables import Tables

LOWEST = max(PriorityClass)
SHORT_OF = (WaitFor.KV, WaitFor.SLOT)


def preempt(tables: Tables, now: float) -> list[Action]:
    """Only a higher class whose first request waits for decode is worth a preemption."""
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
    fields: dict[str, object] = {"request_id": victim.request_id}
    return [
        *attempt_lifecycle.abort(tables, victim, sentence, now),
        attempt_lifecycle.failed_message(victim.gateway, victim.key, sentence, Code.PREEMPTED),
        Note("info", "request.preempted", sentence, fields),
    ]


def _newest(tables: Tables) -> Attempt | None:
    """The newest attempt of the lowest class that is on a worker and loses nothing."""
    for attempt in reversed(tables.attempts.values()):
        without_tokens = attempt.state is AttemptState.PLACED
        if attempt.priority is LOWEST and (without_tokens or _may_pause(attempt)):
            return attempt
    return None


def _may_pause(attempt: Attempt) -> bool:
    return attempt.state is AttemptState.DECODING and attempt.resumable
