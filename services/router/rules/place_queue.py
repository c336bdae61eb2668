"""From the queue to the workers.

One pass looks at the window of the queue (`queue/waiting_queue.py`). Whatever one request lacks, a
larger one lacks too, so a pass asks placement only about sizes that may still fit. It always asks
about the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from common.errors import Code
from common.identity import identity_of
from common.messages import Abort, KvHolder, Prefetch, Prefill, Role
from services.router.estimates.rates import rates
from services.router.events import Action, Note, Send
from services.router.fleet.pairing import can_take
from services.router.fleet.pools import pool_for
from services.router.fleet.prefixes import known_prefixes, remember_prefix, stored_prefixes
from services.router.placement import ahead, checkpoint, place, prefetch
from services.router.placement.pull import source_of
from services.router.placement.types import (
    Placement,
    PlacementContext,
    ResourceRequest,
    WaitFor,
    WorkerView,
)
from services.router.records.attempt import Attempt
from services.router.records.worker import Worker
from services.router.rules import (
    attempt_lifecycle,
    degradation_reports,
    moves,
    pair_reports,
    preempt,
    submit,
)
from services.router.tables import Tables

NEVER = 1 << 62
AHEAD_VIEWS_MAX = 8
"""Full decode workers that are looked at, in turn, for one that a prompt may begin ahead for."""


def place_waiting(tables: Tables, now: float) -> list[Action]:
    """Places what fits now. Passes repeat while they place something."""
    actions = _place_trials(tables, now)
    while len(tables.waiting):
        step = _place_next(tables, now)
        if step is None:
            break
        actions += step
    return actions + _prefetch(tables, now)


def _prefetch(tables: Tables, now: float) -> list[Action]:
    """Tells workers of the next requests that they will probably get; each request is looked at
    once. Nothing is known of any store while none has told what it has."""
    memory, actions = tables.placement_memory, list[Action]()
    if not memory.knows_stores:
        return actions
    prefills = tables.snapshots.prefills()
    for attempt in islice(tables.waiting.in_order(), tables.settings.prefetch_queued):
        if attempt.looked_ahead or not attempt.may_prefetch:
            continue
        attempt.looked_ahead = True
        decodes = _suiting(tables, attempt.request, tables.snapshots.decodes())
        context = _context(tables, attempt, now, any_prefill=bool(prefills))
        chosen = prefetch.choose(context, decodes, prefills, memory.policy)
        if chosen is None:
            continue
        attempt.prefetch, key = chosen, (attempt.request_id, attempt.number)
        order = Prefetch(request_id=key[0], attempt=key[1], body=attempt.body, source=chosen.source)
        actions.append(Send(chosen.identity, order))
    return actions


def _end_prefetch(tables: Tables, attempt: Attempt, chosen: Placement) -> list[Action]:
    """The worker that was told of this request need not wait for it if it goes elsewhere."""
    told = attempt.prefetch
    worker = tables.workers.get(told.identity) if told is not None else None
    if told is None or worker is None or not worker.connected:
        return []
    if told.identity in {view.identity for view in (chosen.decode, chosen.prefill) if view}:
        return []
    abort = Abort(request_id=attempt.request_id, attempt=attempt.number, reason="placed elsewhere")
    return [Send(told.identity, abort)]


def _place_next(tables: Tables, now: float) -> list[Action] | None:
    """Places or refuses one attempt; None when none in the window can be."""
    decodes = preempt.open_decodes(tables)
    if not decodes:
        return _place_ahead(tables, now)
    prefills = tables.quarantine.trials.spared(tables.snapshots.prefills())
    too_big = too_long = NEVER
    passed: list[Attempt] = []
    tables.wants_prefill = tables.wants_forecast = False
    for attempt in _unsuspected(tables):
        request = attempt.promise(decodes[0])
        if attempt.start_by and now >= attempt.start_by:
            return submit.refuse_expired(tables, attempt, now)
        workers = preempt.open_to(tables, attempt, decodes, prefills, now)
        too_large = request.promised_tokens >= too_big or request.prompt_tokens >= too_long
        if workers is None or too_large:
            passed.append(attempt)
            continue
        source = moves.source_of(tables, attempt, now)
        able = _suiting(tables, request, workers[0])
        choice = _choose_for(tables, attempt, (able, workers[1]), source, now)
        if isinstance(choice, Placement):
            for earlier in passed:
                earlier.passed_by += 1
            return _dispatch(tables, attempt, choice, now, source)
        attempt.waits_for = choice if able else _lacks(request.adapter, workers[0])
        tables.wants_prefill |= choice is WaitFor.PREFILL
        if len(able) < len(decodes):  # others may have room where this one cannot go
            passed.append(attempt)
            continue
        if choice is WaitFor.PREFILL:
            too_long = min(too_long, request.prompt_tokens // 8)
        else:
            if not tables.can_ever_hold(request):
                sentence = submit.too_long_sentence(request)
                code = Code.CONTEXT_LENGTH_EXCEEDED
                return submit.refuse(tables, attempt, code, sentence, now)
            too_big = min(too_big, request.promised_tokens)
        passed.append(attempt)
    return None


def _place_ahead(tables: Tables, now: float) -> list[Action] | None:
    """No decode worker has a free slot: the first in the queue may begin before one has."""
    attempt, any_decode = tables.waiting.head(), tables.snapshots.any_decode()
    attempt.waits_for = WaitFor.SLOT if any_decode else WaitFor.WORKER
    if not _may_begin_ahead(tables, attempt):
        return None
    tables.wants_forecast = True
    request, residence_s = attempt.request, tables.estimates.decode_residence_s(0.0)
    trials, share = tables.quarantine.trials, tables.settings.slots_ahead_max
    full = trials.spared(tables.snapshots.next_full_decodes(AHEAD_VIEWS_MAX))
    full = _suiting(tables, request, full)
    seconds = tables.estimates.prefill_seconds
    expected = ahead.Forecast(seconds(request.prompt_tokens), residence_s)
    if not ahead.with_slots_ahead(full, expected, share):
        return None
    attempt.promise(full[0])
    context = _context(tables, attempt, now, any_prefill=True)
    cached = max(context.cached.values(), default=0)
    expected = ahead.Forecast(seconds(request.prompt_tokens - cached), residence_s)
    able = ahead.with_slots_ahead(full, expected, share)
    choice = _choose(tables, able, trials.spared(tables.snapshots.prefills()), context)
    if isinstance(choice, Placement) and choice.prefill is not None:
        return _dispatch(tables, attempt, ahead.told(choice, expected), now)
    return None


def _may_begin_ahead(tables: Tables, attempt: Attempt) -> bool:
    """A prompt that is to be computed for the first time, while computed ones do not wait."""
    limit, state = tables.limits.max_active, tables.admission
    new = attempt.number == 1 and attempt.priority is not preempt.LOWEST
    room = not limit or tables.active < limit
    return (
        new
        and room
        and not state.overdue_starts
        and not tables.quarantine.is_suspect(attempt.digest)
    )


def _suiting(tables: Tables, request: ResourceRequest, views: list[WorkerView]) -> list[WorkerView]:
    if request.adapter or (tables.settings.itl_slo_ms and not request.patient):
        return [view for view in views if view.suits(request)]
    return views


def _lacks(adapter: str, views: list[WorkerView]) -> WaitFor:
    """What a request waits for that suits none of these workers."""
    return WaitFor.SLOT if any(view.has(adapter) for view in views) else WaitFor.ADAPTER


def _choose_for(
    tables: Tables,
    attempt: Attempt,
    workers: tuple[list[WorkerView], list[WorkerView]],
    source: Worker | None,
    now: float,
) -> Placement | WaitFor:
    """`workers`: decode workers with a free slot, and prefill workers. `source`: keeps its KV."""
    decodes, prefills = workers
    context = _context(tables, attempt, now, any_prefill=bool(prefills), source=source)
    holders = [view for view in decodes if view.identity == attempt.copies_at]
    for view in holders if source is None else ():
        if checkpoint.worth_going_to(view, attempt.copied_blocks, attempt.request.prompt_tokens):
            there = _choose(tables, [view], [], checkpoint.at_holder(context, view))
            if isinstance(there, Placement):
                return there
    anywhere = source is None and attempt.follows_parked
    if anywhere or not (attempt.avoid or attempt.moved_from):
        return _choose(tables, decodes, prefills, context)
    choice: Placement | WaitFor = WaitFor.WORKER
    for views in moves.preferences(attempt, decodes, source):
        choice = _choose(tables, views, prefills, context) if views else choice
        if isinstance(choice, Placement):
            return moves.with_target_told(tables, attempt, choice)
    return choice


def _place_trials(tables: Tables, now: float) -> list[Action]:
    """Places attempts of suspected prompts, each alone on a decode worker, which computes the
    prompt itself."""
    if not tables.quarantine.has_suspicions:
        return []
    may_be_tried = tables.quarantine.may_be_tried
    suspects = [attempt for attempt in tables.waiting.window() if may_be_tried(attempt.digest)]
    actions: list[Action] = []
    for attempt in suspects:
        limit = tables.limits.max_active
        if not limit or tables.active < limit:
            actions += _place_trial(tables, attempt, now)
    return actions


def _unsuspected(tables: Tables) -> Iterator[Attempt]:
    """The window of the queue without the attempts that wait for a trial."""
    quarantine = tables.quarantine
    for attempt in tables.waiting.window():
        if quarantine.has_suspicions and quarantine.is_suspect(attempt.digest):
            attempt.waits_for = WaitFor.TRIAL
        else:
            yield attempt


def _place_trial(tables: Tables, attempt: Attempt, now: float) -> list[Action]:
    trials, views = tables.quarantine.trials, {v.identity: v for v in tables.snapshots.decodes()}
    begun = trials.of(attempt.digest)
    if begun is not None and begun[1].attempt is not None:
        return []
    total = attempt.request.total_tokens
    able = [
        view
        for view in _suiting(tables, attempt.request, list(views.values()))
        if total <= view.max_model_len and view.kv_need(total) <= view.kv_tokens_max
    ]
    worker = trials.set_aside(attempt.digest, able, len(views), now)
    if worker is None:
        return []
    trial = trials.rows[worker]
    alone = not views[worker].requests
    if not alone and now - trial.since < tables.settings.liveness.trial_wait_ms / 1000:
        return []
    context = _context(tables, attempt, now, any_prefill=False)
    choice = _choose(tables, [views[worker]], [], context)
    if not isinstance(choice, Placement):
        return []
    attempt.trial, trial.attempt = True, attempt.key
    sentence = f"alone, because workers died with its prompt; {choice.sentence}"
    return _dispatch(tables, attempt, choice._replace(sentence=sentence), now)


def _choose(
    tables: Tables, decodes: list[WorkerView], prefills: list[WorkerView], context: PlacementContext
) -> Placement | WaitFor:
    """Workers with a health verdict against them are chosen only if no others have room."""
    policy, unhealthy = tables.placement_memory.policy, tables.unhealthy
    if unhealthy:
        healthy_decodes = [view for view in decodes if view.identity not in unhealthy]
        healthy_prefills = [view for view in prefills if view.identity not in unhealthy]
        for choices in (healthy_prefills, prefills) if healthy_prefills else (prefills,):
            choice = place.place(context, healthy_decodes, choices, policy)
            if isinstance(choice, Placement):
                return choice
    return place.place(context, decodes, prefills, policy)


def _context(
    tables: Tables,
    attempt: Attempt,
    now: float,
    *,
    any_prefill: bool,
    source: Worker | None = None,
) -> PlacementContext:
    memory, request, workers = tables.placement_memory, attempt.request, tables.workers
    if source is not None:
        request = request._replace(local_reason=f"its KV comes from {source.name}, where it ran")
    cached = known_prefixes(memory, workers, request.prefix)
    stored = (
        stored_prefixes(memory, workers, request.prefix)
        if memory.knows_stores and request.prefix
        else ()
    )
    holder = workers.get(attempt.copies_at) if attempt.copies_at else None
    if holder is not None and not holder.away:
        stored = checkpoint.with_copies(stored, holder.view(), request.prompt_tokens)
    for prefix_of in stored:
        if workers[prefix_of.identity].role is Role.PREFILL and not prefix_of.on_disk:
            before = cached.get(prefix_of.identity, 0)
            cached[prefix_of.identity] = max(before, prefix_of.tokens)
    return PlacementContext(
        request=request,
        cached=cached,
        stored=stored,
        options=memory.options,
        local=not any_prefill or memory.all_local or bool(request.local_reason),
        rates=rates(tables.estimates, attempt),
        excluded_pairs=memory.pairs.refresh_excluded(now),
        was_remote=memory.was_remote(request),
        probe=memory.probe_due(request),
    )


def _dispatch(
    tables: Tables,
    attempt: Attempt,
    placement: Placement,
    now: float,
    source: Worker | None = None,
) -> list[Action]:
    """Takes the workers' promises; then the gateway, P and D are told at once, P and D with the
    same ticket. `source`: the decode worker that keeps the KV, in place of P, if D can take it."""
    if source is not None and not can_take(placement.decode, source):
        source = None
    placement = prefetch.told(placement, attempt.prefetch)
    tables.waiting.serve(attempt)
    tables.place(attempt, placement, now)
    tables.counts.placed += 1
    tables.counts.placed_ahead += placement.ahead
    decode, prefill = placement.decode, placement.prefill
    memory, body = tables.placement_memory, attempt.body
    serial = memory.next_serial()
    for view in (decode, prefill):
        if view is not None and attempt.request.adapter:
            tables.workers[view.identity].loads_adapter(attempt.request.adapter)
    tables.workers[decode.identity].last_placed_serial = serial
    remember_prefix(memory, tables.workers, attempt.request, placement)
    pool = pool_for(tables.pools.values(), prefill or decode, attempt.request.prefix)
    attempt.drop_prompt()
    remote = prefill is not None
    if source is None:
        memory.record_decision(attempt.request, remote=remote, compared=placement.compared)
    degradation_reports.record_placement(tables, attempt, placement, now)
    actions = [
        *_end_prefetch(tables, attempt, placement),
        attempt_lifecycle.placed_message(attempt),
    ]
    ticket = None
    if source is not None:
        tables.workers[decode.identity].start_prompt(attempt.key, 1)
        ticket = attempt_lifecycle.ticket(tables, attempt, decode, source.view())
        actions.append(attempt_lifecycle.hand_over(tables, attempt, source, ticket))
    elif prefill is None:
        tables.counts.placed_local += 1
        worker = tables.workers[decode.identity]
        worker.start_prompt(attempt.key, attempt.request.prompt_tokens)
    else:
        worker = tables.workers[prefill.identity]
        worker.last_placed_serial = serial
        memory.pairs.start_trial((prefill.identity, decode.identity), attempt.key, now)
        tables.open_prefill(attempt, worker)
        ticket = attempt_lifecycle.ticket(tables, attempt, decode, prefill)
        prefill_order = Prefill(
            request_id=attempt.request_id,
            attempt=attempt.number,
            ticket=ticket,
            source=source_of(placement.pull),
            holder=pool,
        )
        actions.append(Send(prefill.identity, prefill_order, body))
    if (pair := pair_reports.pulling(attempt)) is not None:
        memory.pairs.start_trial(pair, attempt.key, now)
    holder = _choose_holder(tables, attempt, decode, now) or pool
    attempt.holder = identity_of(holder.name, holder.incarnation) if holder is not None else ""
    order = attempt_lifecycle.decode_message(tables, attempt, ticket, holder)
    if ticket is None:
        order = msgspec.structs.replace(order, source=source_of(placement.pull))
    actions.append(Send(decode.identity, order, body))
    fields: dict[str, object] = {"request_id": attempt.request_id, "attempt": attempt.number}
    actions.append(Note("debug", "request.placed", placement.sentence, fields))
    return actions


def _choose_holder(
    tables: Tables, attempt: Attempt, decode: WorkerView, now: float
) -> KvHolder | None:
    """The worker whose store gets copies of the attempt's blocks, if they are wanted."""
    policy, request = tables.settings.checkpoint, attempt.request
    if not checkpoint.wants_copies(policy, request, resumable=attempt.resumable):
        return None
    excluded = tables.placement_memory.pairs.refresh_excluded(now)
    others = tables.snapshots.decodes()
    holder = checkpoint.choose_holder(
        decode, others, attempt.request_id, attempt.copies_at, excluded, request.adapter
    )
    return checkpoint.holder_of(holder) if holder is not None else None
