"""Running streams leave their decode worker and go on at another, from their KV.

A stream is ordered to leave because its worker is to be empty (an operator drains or evicts it, it
takes another role, or it stops), because an operator moves this stream, or because its place is
needed (`preempt.py`). The next worker connects first. Then the first one ends the stream after a
token and keeps its KV. The gateway submits the next attempt, which is placed as any other, with the
KV of the first worker in place of a prefill. Where that KV is gone by then, the next worker is told
so and computes it again.

With `[kv] copy_ahead_ms` a stream that need not hurry is copied first: its worker offers its full
blocks to the store of one that may take it, and goes on meanwhile. When it says that they are
there, or when that time is over, the stream leaves, and its KV brings what is not there yet.

A worker that is to be empty keeps what cannot move, and what no other worker has room for; it ends
there. A stream that has just moved is not moved again for the sake of room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from common.blocks import streams_can_move
from common.identity import name_of
from common.messages import CopiedAhead, CopyAhead, Introduce, Move
from common.model.adapters import name_of_adapter
from services.router.events import Action, Note, Send
from services.router.fleet.pairing import can_take
from services.router.placement import checkpoint
from services.router.placement.fingerprint_mismatch import difference
from services.router.placement.place import rooms
from services.router.placement.types import Placement, WorkerView
from services.router.records.attempt import Attempt
from services.router.records.move import MoveOrder, MoveReason
from services.router.records.states import AttemptState, WorkerState
from services.router.records.worker import Worker
from services.router.tables import Tables

MOVING_MAX = 8
"""Streams of one worker that were told to leave and have not ended there."""
CONNECT_SECONDS = 0.3
"""What a first KV connection takes; streams begin to leave after it."""
INTRODUCED_SECONDS = 60.0
"""For so long two workers that connected are thought to be connected."""
INTRODUCED_MAX = 64
KEPT_SHARE = 0.75
"""For this part of the time that workers keep its KV an attempt that waits is placed by it."""
PARKED_SECONDS = 0.2
"""For so long the KV of a parked stream is kept, where its budget is why it was parked."""
LOST_SECONDS = 2.0
"""An order that was not followed by then was lost with a connection."""
COOLDOWN_SECONDS = 10.0
"""For so long a stream that has moved is not moved to make room."""
COPIED_FIRST = frozenset(MoveReason) - {MoveReason.ROOM, MoveReason.EVICT, MoveReason.UNORDERED}
"""Moves for which nobody waits, and after which nothing is dropped."""
LAG_BLOCKS = 2
"""So many full blocks may travel with the move itself."""
BEING_ENDED = "it is being ended"
WITHOUT_START = "it has no token yet"
NO_WAY_ON = "its gateway cannot continue it elsewhere exactly"
ADOPTED = "another router placed it, and whether it can go on elsewhere is not known here"
ON_TRIAL = "its prompt is suspected to kill workers"
IN_PARTS = "some layers of its model keep a part of the tokens only, and such KV is not moved"


def move_streams(tables: Tables, now: float) -> list[Action]:
    """At each Tick."""
    actions = _tell_due(tables, now)
    for worker in tables.workers.values():
        if not worker.role.decodes:
            continue
        if not _is_emptied(worker):
            worker.emptying_since = worker.drop_at = None
        elif worker.emptying_since is None:
            actions += start_emptying(tables, worker, now)
        elif now - worker.emptying_since >= CONNECT_SECONDS and not worker.away:
            actions += _move_some(tables, worker, now)
    return actions


def start_emptying(tables: Tables, worker: Worker, now: float) -> list[Action]:
    """The workers that may take its streams connect to it."""
    worker.emptying_since = now
    actions: list[Action] = []
    for view in _others(tables, worker):
        actions += introduce(worker, tables.workers[view.identity], now)
    return actions


def order_move(
    tables: Tables,
    attempt: Attempt,
    reason: MoveReason,
    sentence: str,
    now: float,
    target: str = "",
) -> list[Action]:
    """The attempt goes on elsewhere, if it can leave and some worker, or the `target`, has room."""
    if attempt.leaves_by is not None or why_it_stays(tables, attempt):
        return []
    source = tables.workers[attempt.decode]
    views = [view for view in takers(tables, attempt, source) if target in ("", view.identity)]
    if not views:
        return []
    next_ones = [tables.workers[view.identity] for view in views[:MOVING_MAX]]
    actions = [action for worker in next_ones for action in introduce(source, worker, now)]
    since = min(worker.introduced[source.identity] for worker in next_ones)
    due = since + CONNECT_SECONDS
    copy_to = _copy_to(tables, attempt, reason, target, now)
    order = MoveOrder(reason, sentence, target, due, copy_to=copy_to)
    tables.order_move(attempt, order)
    return [*actions, *(_copy_or_tell(tables, attempt, order, now) if due <= now else [])]


def on_copied_ahead(
    tables: Tables, worker: Worker, message: CopiedAhead, now: float
) -> list[Action]:
    """The stream leaves now, if it still is to."""
    attempt = tables.attempts.get((message.request_id, message.attempt))
    if attempt is None or attempt.decode != worker.identity:
        tables.counts.drop("stale copy report")
        return []
    order = attempt.leaves_by
    if order is None or order.told is not None or order.copy_until is None:
        return []
    order.copied_blocks = message.held
    return leave_now(tables, attempt, order, now)


def make_room(
    tables: Tables, victims: Iterable[Attempt], first: Attempt, sentence: str, now: float
) -> list[Action]:
    """One of these streams moves, and leaves a place that the first in the queue fits into."""
    for victim in victims:
        if cools_down(victim, now) or not _would_fit(tables, victim, first):
            continue
        actions = order_move(tables, victim, MoveReason.ROOM, sentence, now)
        if actions:
            return actions
    return []


def cools_down(attempt: Attempt, now: float) -> bool:
    """Whether it has moved, or was parked, so lately that it is not moved to make room."""
    return is_recent(attempt.moved_at, now) or is_recent(attempt.parked_at, now)


def is_recent(at: float | None, now: float) -> bool:
    return at is not None and now - at < COOLDOWN_SECONDS


def why_it_stays(tables: Tables, attempt: Attempt) -> str:
    """Why this attempt cannot leave its decode worker with its KV; empty = it can."""
    worker = tables.workers.get(attempt.decode)
    if worker is None or attempt.state is AttemptState.PLACED:
        return WITHOUT_START
    if attempt.state is not AttemptState.DECODING:
        return BEING_ENDED
    if attempt.trial:
        return ON_TRIAL
    if not attempt.resumable:
        return ADOPTED if attempt.adopted else NO_WAY_ON
    if worker.state not in (WorkerState.READY, WorkerState.DRAINING):
        return (
            f"{worker.name}, where it runs, is {worker.state}: {worker.reason or 'it has to wait'}"
        )
    return "" if streams_can_move(worker.capacity.kv_groups) else IN_PARTS


def why_not_taken(tables: Tables, attempt: Attempt, source: Worker, worker: Worker) -> str:
    """Why this worker cannot take the attempt from `source` now; empty = it can."""
    name, view, total = worker.name, worker.view(), attempt.request.total_tokens
    if not worker.role.decodes:
        return f"{name} is a prefill worker"
    if worker.identity == source.identity:
        return f"it runs on {name}"
    if not worker.ready:
        return f"{name} is {worker.availability} and gets nothing new"
    if unlike := _unlike(attempt, source, worker):
        return f"{name} {unlike}"
    aside = worker.identity in tables.quarantine.trials.rows
    if aside or (worker.speed.patient and not attempt.request.patient):
        slow = "too slow for all classes but batch"
        return f"{name} is {'set aside for a prompt that may kill workers' if aside else slow}"
    if view.requests >= view.requests_max:
        return f"{name} has no free slot: it has {view.requests} requests"
    if total > view.max_model_len:
        return f"{name} takes {view.max_model_len} tokens at most, and this may grow to {total}"
    free = view.kv_tokens_max - view.kv_tokens
    need = view.kv_need(attempt.request.promised_tokens)
    return f"{name} has {free} KV tokens free, and it needs {need}" if need > free else ""


def _unlike(attempt: Attempt, source: Worker, worker: Worker) -> str:
    """Why the KV of the attempt would be of no use there, as the rest of a sentence; empty = it
    would be."""
    adapter = attempt.request.adapter
    if not can_take(worker.view(), source):
        parts = difference(source.fingerprint_parts, worker.fingerprint_parts)
        return f"has another fingerprint than {source.name}" + (f": {parts}" if parts else "")
    return "" if worker.view().has(adapter) else f"has no adapter {name_of_adapter(adapter)}"


def takers(tables: Tables, attempt: Attempt, source: Worker) -> list[WorkerView]:
    """The decode workers that could take the attempt from `source` now."""
    return [view for view in _others(tables, source) if rooms(attempt.request, [view])]


def source_of(tables: Tables, attempt: Attempt, now: float) -> Worker | None:
    """The decode worker that keeps the KV of this attempt, if it may still have it."""
    worker = tables.workers.get(attempt.moved_from) if attempt.moved_from else None
    if (
        worker is None
        or worker.away
        or not worker.role.decodes
        or not streams_can_move(worker.capacity.kv_groups)
    ):
        return None
    keep = PARKED_SECONDS if attempt.follows_parked else tables.settings.keep_seconds
    age = now - (attempt.moved_at or attempt.received)
    return worker if age <= KEPT_SHARE * keep else None


def preferences(
    attempt: Attempt, decodes: list[WorkerView], source: Worker | None
) -> Iterator[list[WorkerView]]:
    """For an attempt that continues another, which workers are tried first: the one that an order
    names, the one that got its blocks, those that can take its KV, then all but the one that it
    left. That one comes last if it gave the stream up, and only where there is no other if it was
    lost or fell silent."""
    left = attempt.avoid or attempt.moved_from
    others = [view for view in decodes if view.identity != left]
    order = attempt.came_by
    for first in (order.target, order.copy_to) if order is not None else ():
        yield [view for view in others if view.identity == first]
    if source is not None:
        yield [view for view in others if can_take(view, source)]
    yield others
    if attempt.moved_from or not others:
        yield decodes


def _is_emptied(worker: Worker) -> bool:
    changes = worker.next_role is not None
    return worker.drained or changes or worker.state is WorkerState.DRAINING


def _tell_due(tables: Tables, now: float) -> list[Action]:
    actions: list[Action] = []
    for attempt in list(tables.leaving.values()):
        order = attempt.leaves_by
        if order is None:
            continue
        if order.told is not None:
            if now - order.told >= LOST_SECONDS:
                tables.order_move(attempt, None)
                attempt.parked = False
        elif order.due <= now:
            actions += _copy_or_tell(tables, attempt, order, now)
    return actions


def _copy_to(tables: Tables, attempt: Attempt, reason: MoveReason, target: str, now: float) -> str:
    """Identity of the worker that gets the stream's full blocks before it leaves; empty = none
    does. `target`: the only one that may, if it is not empty."""
    if not tables.settings.copy_ahead_seconds or reason not in COPIED_FIRST:
        return ""
    source = tables.workers[attempt.decode]
    orders = [other.leaves_by for other in tables.leaving.values()]
    coming = Counter(order.copy_to for order in orders if order is not None)
    able = [
        view._replace(requests=view.requests + coming[view.identity])
        for view in takers(tables, attempt, source)
        if target in ("", view.identity)
    ]
    excluded = tables.placement_memory.pairs.refresh_excluded(now)
    taker = checkpoint.choose_holder(
        source.view(), able, attempt.request_id, attempt.holder, excluded
    )
    return taker.identity if taker is not None else ""


def _copy_or_tell(tables: Tables, attempt: Attempt, order: MoveOrder, now: float) -> list[Action]:
    """A stream whose blocks are to be copied first leaves when they are, or when it may not wait
    for that any longer."""
    taker = tables.workers.get(order.copy_to)
    if taker is None or taker.away or (order.copy_until is not None and order.copy_until <= now):
        return leave_now(tables, attempt, order, now)
    if order.copy_until is not None:
        return []
    order.copy_until = now + tables.settings.copy_ahead_seconds
    return [_copies_go_to(attempt, taker)]


def _copies_go_to(attempt: Attempt, holder: Worker | None) -> Send:
    identity = holder.identity if holder is not None else ""
    if attempt.holder != identity:
        attempt.holder, attempt.checkpoint = identity, None
    request_id, number = attempt.key
    named = checkpoint.holder_of(holder.view(), goes_on=True) if holder is not None else None
    order = CopyAhead(request_id=request_id, attempt=number, holder=named, lag_blocks=LAG_BLOCKS)
    return Send(attempt.decode, order)


def leave_now(tables: Tables, attempt: Attempt, order: MoveOrder, now: float) -> list[Action]:
    """Between order and due time all may have changed."""
    why = why_it_stays(tables, attempt)
    if not why and not takers(tables, attempt, tables.workers[attempt.decode]):
        why = "no other decode worker has room for it any more"
    if not why:
        return _tell(attempt, order, now)
    tables.order_move(attempt, None)
    fields: dict[str, object] = {"request_id": attempt.request_id}
    note = Note("info", "request.stays", f"it was to move ({order.sentence}): {why}", fields)
    policy, resumable = tables.settings.checkpoint, attempt.resumable
    wanted = checkpoint.wants_copies(policy, attempt.request, resumable=resumable)
    ends = order.copy_until is not None and not wanted
    return [note, *([_copies_go_to(attempt, None)] if ends else [])]


def _tell(attempt: Attempt, order: MoveOrder, now: float) -> list[Action]:
    order.told = now
    request_id, number = attempt.key
    move = Move(request_id=request_id, attempt=number, reason=order.sentence)
    return [Send(attempt.decode, move)]


def introduce(source: Worker, taker: Worker, now: float) -> list[Action]:
    """`taker` connects to `source`. It is told each time, because connections get lost."""
    since = taker.introduced.pop(source.identity, None)
    again = since is None or now - since > INTRODUCED_SECONDS
    taker.introduced[source.identity] = now if again or since is None else since
    if len(taker.introduced) > INTRODUCED_MAX:
        del taker.introduced[next(iter(taker.introduced))]
    return [Send(taker.identity, Introduce(kv_address=source.kv_address))]


def _move_some(tables: Tables, worker: Worker, now: float) -> list[Action]:
    """An evicted worker's streams would be dropped, so that they go though others wait."""
    if not worker.decoding or (len(tables.waiting) and worker.drop_at is None):
        return []
    if not streams_can_move(worker.capacity.kv_groups):
        return []
    leaving = sum(key in tables.leaving for key in worker.held)
    others = _others(tables, worker)
    reason, why = MoveReason.STOP, worker.reason
    if worker.next_role is not None:
        reason, why = MoveReason.ROLE, f"it becomes a {worker.next_role} worker"
    if worker.drained:
        reason, why = MoveReason.DRAIN, "it is drained"
    if worker.drop_at is not None:
        reason, why = MoveReason.EVICT, "an operator evicts what it holds"
    sentence = f"this stream leaves {worker.name}: {why}"
    actions: list[Action] = []
    for key in list(worker.decoding):
        attempt = tables.attempts[key]
        if leaving >= min(MOVING_MAX, rooms(attempt.request, others)):
            if attempt.request.adapter:
                continue
            break
        if attempt.leaves_by is None and not why_it_stays(tables, attempt):
            copy_to = _copy_to(tables, attempt, reason, "", now)
            order = MoveOrder(reason, sentence, due=now, copy_to=copy_to)
            tables.order_move(attempt, order)
            leaving += 1
            actions += _copy_or_tell(tables, attempt, order, now)
    return actions


def _others(tables: Tables, worker: Worker) -> list[WorkerView]:
    """Those that could take its streams, and are not set aside for a suspected prompt."""
    aside = tables.quarantine.trials.rows
    views = tables.snapshots.open_decodes()
    return [view for view in views if view.identity not in aside and can_take(view, worker)]


def _would_fit(tables: Tables, victim: Attempt, first: Attempt) -> bool:
    """Whether the first in the queue could have the place of the victim."""
    worker = tables.workers.get(victim.decode)
    if worker is None or not worker.ready:
        return False
    view = worker.view()
    free = view.kv_tokens_max - view.kv_tokens + worker.held.get(victim.key, 0)
    fits = view.kv_need(first.request.promised_tokens) <= free
    short = first.request.total_tokens <= view.max_model_len
    return fits and short and view.requests <= view.requests_max


def with_target_told(tables: Tables, attempt: Attempt, choice: Placement) -> Placement:
    """Says why it is not where its order wants it."""
    target = attempt.came_by.target if attempt.came_by is not None else ""
    if not target or choice.decode.identity == target:
        return choice
    source, wanted = tables.workers.get(attempt.moved_from), tables.workers.get(target)
    why = f"{name_of(target)} is gone"
    if wanted is not None:
        why = why_not_taken(tables, attempt, source, wanted) if source is not None else ""
        why = why or f"no worker that has room may hand KV over to {wanted.name} now"
    return choice._replace(sentence=f"{choice.sentence}; not where it was to go: {why}")
