"""Preemption: who makes room for whom.

An attempt whose stream nobody reads makes room for any request that a client waits for and that
lacks a slot or KV on a decode worker. Beyond that, while decode KV is short, the newest request of
the lowest class makes room for a higher class.

A stream makes room by moving with its KV to a worker that has room for it and not for the request
that waits (`moves.py`). Where there is none it is parked: its worker frees what it has, its gateway
submits it again, and once there is room it is computed again and goes on after the tokens that its
client already has. A request that streams is preempted only if its gateway can continue it exactly
(`Submit.resumable`). Of the lowest class at most one is preempted at each Tick, because the KV that
it frees shows only in the next reports, and none while another is on its way. What was parked
waits until nobody waits for whom it would be parked again (`waits_behind`), and is not parked twice
within `moves.COOLDOWN_SECONDS`.

That it is seldom needed, new requests of the lowest class leave headroom (`open_to`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from common.errors import Code
from common.messages import PriorityClass
from services.router.events import Action, Note
from services.router.placement.place import with_headroom
from services.router.placement.types import WaitFor, WorkerView
from services.router.records.attempt import Attempt
from services.router.records.move import MoveOutcome, MoveReason
from services.router.records.states import AttemptState
from services.router.rules import attempt_lifecycle, moves
from services.router.tables import Tables

LOWEST = max(PriorityClass)
VICTIMS_MAX = 32
SHORT_OF = (WaitFor.KV, WaitFor.SLOT)


def preempt(tables: Tables, now: float) -> list[Action]:
    return _preempt_abandoned(tables, now) or _preempt_lowest(tables, now)


def abandoned_victims(tables: Tables) -> list[Attempt]:
    """The attempts on workers that nobody reads and that lose nothing, newest first."""
    return [a for a in reversed(tables.abandoned.values()) if _loses_nothing(a)]


def open_to(
    tables: Tables, attempt: Attempt, decodes: list[WorkerView], prefills: list[WorkerView]
) -> tuple[list[WorkerView], list[WorkerView]] | None:
    """The decode and prefill workers that this attempt may go to now. A new one of the lowest class
    leaves headroom for higher ones, unless its class is owed service before one that waits. None:
    there is no headroom, or it waits behind another (`waits_behind`)."""
    if attempt.follows_parked and waits_behind(attempt, tables.waiting.head()):
        return None
    if attempt.priority is not LOWEST or attempt.number > 1 or tables.waiting.owes(LOWEST):
        return decodes, prefills
    reserve = tables.admission.config.batch_reserve
    prompt_tokens = attempt.request.prompt_tokens
    open_workers = with_headroom(prompt_tokens, decodes, prefills, reserve)
    if open_workers is None:
        attempt.waits_for = WaitFor.HEADROOM
        tables.wants_prefill = True  # a prompt that is computed may make it
    return open_workers


def waits_behind(attempt: Attempt, first: Attempt) -> bool:
    """Whether this attempt, which was parked, would be parked again for the first in the queue."""
    if not attempt.follows_parked or attempt is first:
        return False
    lower = attempt.priority is LOWEST and first.priority is not LOWEST
    return lower or (attempt.abandoned and not first.abandoned)


def _preempt_abandoned(tables: Tables, now: float) -> list[Action]:
    """One for each request that waits, less those that are making room already."""
    if not tables.abandoned or not len(tables.waiting):
        return []
    first = tables.waiting.head()
    if first.waits_for not in SHORT_OF:
        return []
    waiting = sum(not attempt.abandoned for attempt in tables.waiting.window())
    leaving = sum(_leaves(attempt) for attempt in tables.abandoned.values())
    sentence = "nobody reads this stream now, and another request waits for its place"
    victims = [victim for victim in abandoned_victims(tables) if not _leaves(victim)]
    actions: list[Action] = []
    for victim in victims[: max(0, waiting - leaving)]:
        moved = moves.make_room(tables, [victim], first, sentence, now)
        actions += moved or _parked(tables, victim, sentence, now)
    return actions


def _preempt_lowest(tables: Tables, now: float) -> list[Action]:
    """Only a higher class whose first request waits for decode is worth a preemption."""
    state = tables.admission
    if state.kv_used <= state.config.kv_yield or not len(tables.waiting):
        return []
    first = tables.waiting.head()
    if first.priority is LOWEST or first.waits_for not in SHORT_OF:
        return []
    if any(_makes_room(attempt) for attempt in tables.leaving.values()):
        return []
    victims = list(islice(_newest_first(tables, now), VICTIMS_MAX))
    if not victims:
        return []
    sentence = (
        f"{state.kv_used:.0%} of the decode workers' KV is in use, and a request of class "
        f"{first.priority.name.lower()} waits for it"
    )
    victim = next((a for a in victims if not moves.cools_down(a, now)), victims[0])
    moved = moves.make_room(tables, victims, first, sentence, now)
    return moved or _parked(tables, victim, sentence, now)


def _parked(tables: Tables, victim: Attempt, sentence: str, now: float) -> list[Action]:
    sentence += "; no other worker has room for this one, which goes on later and is computed again"
    tables.counts.move(MoveReason.ROOM, MoveOutcome.PARKED)
    victim.parked, victim.parked_at = True, now
    fields: dict[str, object] = {"request_id": victim.request_id}
    return [
        *attempt_lifecycle.abort(tables, victim, sentence, now),
        attempt_lifecycle.failed_message(victim.gateway, victim.key, sentence, Code.PREEMPTED),
        Note("info", "request.preempted", sentence, fields),
    ]


def _newest_first(tables: Tables, now: float) -> Iterator[Attempt]:
    """The attempts of the lowest class that are on a worker and lose nothing, newest first."""
    for attempt in reversed(tables.attempts.values()):
        if moves.is_recent(attempt.parked_at, now):
            continue
        if attempt.priority is LOWEST and _loses_nothing(attempt) and not _leaves(attempt):
            yield attempt


def _makes_room(attempt: Attempt) -> bool:
    return attempt.leaves_by is not None and attempt.leaves_by.reason is MoveReason.ROOM


def _leaves(attempt: Attempt) -> bool:
    return attempt.state is AttemptState.ABORTING or attempt.leaves_by is not None


def _loses_nothing(attempt: Attempt) -> bool:
    can_pause = attempt.state is AttemptState.DECODING and attempt.resumable
    return attempt.state is AttemptState.PLACED or can_pause
