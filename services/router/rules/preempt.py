"""Preemption: who makes room for whom.

An attempt whose stream nobody reads makes room for any request that a client waits for and that
lacks a slot or KV on a decode worker. Beyond that, while decode KV is short, the newest request of
the lowest class makes room for a higher class.

The gateway of a preempted request submits it again, and it goes on after the tokens that its client
already has once there is room. A request that streams is preempted only if its gateway can continue
it exactly (`Submit.resumable`). Of the lowest class at most one is preempted at each Tick, because
the KV that it frees shows only in the next reports.
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
    return _preempt_abandoned(tables, now) or _preempt_lowest(tables, now)


def abandoned_victims(tables: Tables) -> list[Attempt]:
    """The attempts on workers that nobody reads and that lose nothing, newest first."""
    return [a for a in reversed(tables.abandoned.values()) if _loses_nothing(a)]


def _preempt_abandoned(tables: Tables, now: float) -> list[Action]:
    """One for each request that waits, less those that are making room already."""
    if not tables.abandoned or not len(tables.waiting):
        return []
    if tables.waiting.head().waits_for not in SHORT_OF:
        return []
    waiting = sum(not attempt.abandoned for attempt in tables.waiting.window())
    leaving = sum(a.state is AttemptState.ABORTING for a in tables.abandoned.values())
    sentence = "nobody reads this stream now, and another request waits for its place"
    actions: list[Action] = []
    for victim in abandoned_victims(tables)[: max(0, waiting - leaving)]:
        actions += _preempted(tables, victim, sentence, now)
    return actions


def _preempt_lowest(tables: Tables, now: float) -> list[Action]:
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
    return _preempted(tables, victim, sentence, now)


def _preempted(tables: Tables, victim: Attempt, sentence: str, now: float) -> list[Action]:
    fields: dict[str, object] = {"request_id": victim.request_id}
    return [
        *attempt_lifecycle.abort(tables, victim, sentence, now),
        attempt_lifecycle.failed_message(victim.gateway, victim.key, sentence, Code.PREEMPTED),
        Note("info", "request.preempted", sentence, fields),
    ]


def _newest(tables: Tables) -> Attempt | None:
    """The newest attempt of the lowest class that is on a worker and loses nothing."""
    for attempt in reversed(tables.attempts.values()):
        if attempt.priority is LOWEST and _loses_nothing(attempt):
            return attempt
    return None


def _loses_nothing(attempt: Attempt) -> bool:
    can_pause = attempt.state is AttemptState.DECODING and attempt.resumable
    return attempt.state is AttemptState.PLACED or can_pause
