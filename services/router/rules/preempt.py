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

That it is seldom needed, new requests of the lowest class leave headroom (`open_to`) and begin one
after the other (`records/pace.py`).

A KV budget: a request is promised KV for a part of its tokens at a time. Its decode worker tells
when the next step may bring the stream near to what it is promised, with a fifth of its latest
budget left, and when to all of it (`BudgetReached`). It goes on at the worker with most room for
the next budget. That is its own where its own has room and no other has more, what the stream
itself holds included, and where it has just come from another: then it is granted the next one and
notices nothing. Otherwise it moves (`moves.py`): from 80 % on the next worker connects and gets its
full blocks, and at 100 % it leaves. Where no worker has room, or a higher class waits for KV, it is
parked at 100 %: it leaves as for a move and waits in the queue, before newer requests of its class.
For `moves.PARKED_SECONDS` its worker keeps its blocks, so that it goes on from them if room
appears; after that it goes on from what stores and prefix caches have. A stream that another router
placed is granted all as soon as it asks, if this one is the only router.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from common.errors import Code
from common.messages import BudgetReached, GrantKv, Move, PriorityClass
from services.router.estimates.rates import rates
from services.router.events import Action, Note, Send
from services.router.placement.budget import ALL, Step, next_step
from services.router.placement.place import rooms, with_headroom
from services.router.placement.types import WaitFor, WorkerView
from services.router.records.attempt import Attempt
from services.router.records.move import MoveOrder, MoveOutcome, MoveReason
from services.router.records.states import AttemptState
from services.router.records.worker import Worker
from services.router.rules import attempt_lifecycle, moves
from services.router.tables import Tables

LOWEST = max(PriorityClass)
VICTIMS_MAX = 32
SHORT_OF = (WaitFor.KV, WaitFor.SLOT)
ON_WORKER = (AttemptState.PLACED, AttemptState.DECODING)


def preempt(tables: Tables, now: float) -> list[Action]:
    return _preempt_abandoned(tables, now) or _preempt_lowest(tables, now)


def abandoned_victims(tables: Tables) -> list[Attempt]:
    """The attempts on workers that nobody reads and that lose nothing, newest first."""
    return [a for a in reversed(tables.abandoned.values()) if _loses_nothing(a)]


def open_decodes(tables: Tables) -> list[WorkerView]:
    """Decode workers with a free slot that are not set aside for a trial; none while as many
    requests run as may."""
    limit = tables.limits.max_active
    if limit and tables.active >= limit:
        return []
    return tables.quarantine.trials.spared(tables.snapshots.open_decodes())


def open_to(
    tables: Tables,
    attempt: Attempt,
    decodes: list[WorkerView],
    prefills: list[WorkerView],
    now: float,
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
    paced = _paced(tables, attempt, open_workers[0], now) if open_workers else []
    if open_workers is None or not paced:
        attempt.waits_for = WaitFor.HEADROOM
        tables.wants_prefill = True  # a prompt that is computed may make it
        return None
    return paced, open_workers[1]


def _paced(
    tables: Tables, attempt: Attempt, decodes: list[WorkerView], now: float
) -> list[WorkerView]:
    """Those of these on which another of the lowest class may begin."""
    expected = rates(tables.estimates, attempt)
    tokens = min(attempt.request.max_tokens, expected.out_tokens or attempt.request.max_tokens)
    reserve, open_ones = tables.admission.config.batch_reserve, list[WorkerView]()
    for view in decodes:
        slots = view.requests_max
        step_seconds = expected.step_s + expected.step_s_per_seq * slots
        most = max(1, int(slots * reserve))
        pace = tables.workers[view.identity].pace
        if pace.allows(now, tokens * step_seconds / slots, most):
            open_ones.append(view)
    return open_ones


def waits_behind(attempt: Attempt, first: Attempt) -> bool:
    """Whether this attempt, which was parked, would be parked again for the first in the queue."""
    if not attempt.follows_parked or attempt is first:
        return False
    lower = attempt.priority is LOWEST and first.priority is not LOWEST
    return lower or (attempt.abandoned and not first.abandoned)


def _needs_a_place(tables: Tables, first: Attempt) -> bool:
    """Whether the first in the queue waits for the place of another. A worker may have been kept
    for a suspected prompt when it was looked for, and be open now."""
    others = [view for view in open_decodes(tables) if view.identity != first.avoid]
    return first.waits_for in SHORT_OF and not rooms(first.request, others)


def _preempt_abandoned(tables: Tables, now: float) -> list[Action]:
    """One for each request that waits, less those that are making room already."""
    if not tables.abandoned or not len(tables.waiting):
        return []
    first = tables.waiting.head()
    if not _needs_a_place(tables, first):
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
    if first.priority is LOWEST or not _needs_a_place(tables, first):
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
    tables.gateways[victim.gateway].lost.append(victim.key)  # told again, if it does not hear it
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


# ------------------------------------------------------------ budgets


def on_reached(tables: Tables, worker: Worker, message: BudgetReached, now: float) -> list[Action]:
    """The stream gets more here, or begins to leave, or is parked; or nothing can be done yet, and
    it tells again."""
    attempt = tables.attempts.get((message.request_id, message.attempt))
    if attempt is None or attempt.decode != worker.identity or attempt.state not in ON_WORKER:
        tables.counts.drop("stale budget report")
        return []
    promised = attempt.request.kv_tokens
    if not promised or message.tokens < attempt.kv_tokens_near:
        return [_grant(attempt)]  # it has not heard of the last one
    if attempt.moving:
        return []
    if attempt.adopted:
        return _grant_all(tables, attempt, worker)
    order, actions = attempt.leaves_by, list[Action]()
    if order is not None:
        if message.tokens < promised:
            return []
        actions = moves.leave_now(tables, attempt, order, now)
        if attempt.leaves_by is not None:
            return actions
    return actions + _grow(tables, attempt, worker, message.tokens, now)


def end_grace(tables: Tables, now: float) -> list[Action]:
    """At each Tick: nobody took what is kept of a parked stream. One that has not left yet is not
    aborted: its gateway would hear nothing of that."""
    actions: list[Action] = []
    for key, (identity, since) in list(tables.parked.items()):
        live = tables.attempts.get(key)
        if (live is not None and live.moving) or now - since < moves.PARKED_SECONDS:
            continue
        del tables.parked[key]
        if live is not None:
            continue
        worker = tables.workers.get(identity)
        if worker is not None and worker.connected:
            reason = "no worker had room for the parked stream in time"
            actions.append(attempt_lifecycle.abort_message(identity, key, reason))
    return actions


def _grow(
    tables: Tables, attempt: Attempt, worker: Worker, tokens: int, now: float
) -> list[Action]:
    promised = attempt.request.kv_tokens
    full = tokens >= promised
    here = worker.view()
    total = attempt.request.total_tokens
    step = next_step(max(tokens, promised), total, attempt.budget_bytes, here)
    outranked = _outranked(tables, attempt)
    fits = not outranked and _has_room_here(here, worker, attempt, step)
    best = None if outranked else _roomiest(tables, attempt, worker, step)
    if fits and (best is None or moves.cools_down(attempt, now)):
        return _granted(tables, attempt, step)
    own = _left(tables, here) + worker.held[attempt.key]
    if fits and best is not None and own >= _left(tables, best):
        return _granted(tables, attempt, step)
    why = f"its next step may bring it to {tokens} tokens, and its KV budget holds {promised}"
    if best is not None:
        sentence = f"{why}, and {best.name} has most room for more"
        actions = moves.order_move(tables, attempt, MoveReason.BUDGET, sentence, now, best.identity)
        order = attempt.leaves_by
        if full and order is not None and not attempt.moving:
            actions += moves.leave_now(tables, attempt, order, now)
        return actions
    if not full or attempt.state is not AttemptState.DECODING:
        return []
    lacks = "a request of a higher class waits for KV" if outranked else "no worker has room"
    return _park(tables, attempt, worker, f"{why}, and {lacks}", now)


def _has_room_here(view: WorkerView, worker: Worker, attempt: Attempt, step: Step) -> bool:
    """Whether the stream may grow where it runs."""
    need = view.kv_need(step.tokens or attempt.request.total_tokens)
    return worker.ready and need <= _free(view) + worker.held[attempt.key]


def _free(view: WorkerView) -> int:
    return view.kv_tokens_max - view.kv_tokens


def _roomiest(tables: Tables, attempt: Attempt, worker: Worker, step: Step) -> WorkerView | None:
    """The other worker with most room, if one has room and the stream can leave."""
    if moves.why_it_stays(tables, attempt):
        return None
    request = attempt.request._replace(kv_tokens=step.tokens)
    need = worker.view().kv_need(request.promised_tokens)
    takers = moves.takers(tables, attempt, worker)
    able = [v for v in takers if rooms(request, [v]) and need <= _left(tables, v)]
    return max(able, key=lambda view: _left(tables, view), default=None)


def _left(tables: Tables, view: WorkerView) -> int:
    """KV tokens that are free there once all streams have come and gone that are ordered to."""
    free = _free(view)
    for attempt in tables.leaving.values():
        held = tables.workers[attempt.decode].held.get(attempt.key, 0)
        if attempt.decode == view.identity:
            free += held
        elif attempt.leaves_by is not None and attempt.leaves_by.target == view.identity:
            free -= held
    return free


def _outranked(tables: Tables, attempt: Attempt) -> bool:
    """Whether somebody who goes first waits for KV."""
    if not len(tables.waiting):
        return False
    first = tables.waiting.head()
    higher = first.priority < attempt.priority or attempt.abandoned
    return higher and not first.abandoned and first.waits_for is WaitFor.KV


def _granted(tables: Tables, attempt: Attempt, step: Step) -> list[Action]:
    tables.regrant(attempt, step.tokens)
    attempt.kv_tokens_near = step.near
    attempt.grants += 1
    tables.counts.grants += 1
    return [_grant(attempt)]


def _grant_all(tables: Tables, attempt: Attempt, worker: Worker) -> list[Action]:
    """What its budget is, the router knows that placed it."""
    if not tables.settings.alone or not _has_room_here(worker.view(), worker, attempt, ALL):
        return []
    return _granted(tables, attempt, ALL)


def _grant(attempt: Attempt) -> Send:
    request_id, number = attempt.key
    grant = GrantKv(
        request_id=request_id,
        attempt=number,
        kv_tokens=attempt.request.kv_tokens,
        kv_tokens_near=attempt.kv_tokens_near,
    )
    return Send(attempt.decode, grant)


def _park(
    tables: Tables, attempt: Attempt, worker: Worker, sentence: str, now: float
) -> list[Action]:
    """It leaves with its KV kept for the grace, and waits in the queue as its next attempt."""
    stays = f"stays in the store of {worker.name}" if worker.capacity.pull_blocks else "is let go"
    sentence += f"; it waits until one has, and its KV {stays}"
    order = MoveOrder(MoveReason.BUDGET, sentence, due=now, told=now, parks=True)
    tables.order_move(attempt, order)
    attempt.parked, attempt.parked_at = True, now
    tables.parked[attempt.key] = (worker.identity, now)
    tables.counts.move(MoveReason.BUDGET, MoveOutcome.PARKED)
    request_id, number = attempt.key
    fields: dict[str, object] = {"request_id": request_id, "worker": worker.name}
    return [
        Send(worker.identity, Move(request_id=request_id, attempt=number, reason=sentence)),
        Note("info", "request.parked", sentence, fields),
    ]
