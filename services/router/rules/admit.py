"""Whether a new attempt is admitted: the rules in their order, and the reason of a refusal.

A first attempt has to pass its key's limits, the hard gates, the bounds of the queue and the
prediction of its first token. A later attempt continues what was admitted once: it has to pass the
retry budget and the bounds of the queue only.
"""

from __future__ import annotations

from typing import NamedTuple

from common.errors import Code
from common.messages import KeyLimits, Role, Submit
from services.router.admission import gates
from services.router.admission.keys import CELL_SHARE, ONE_CELL, by_share, predicted_cost
from services.router.admission.predict import LoadSnapshot, Pool, Prediction, predict
from services.router.placement.types import WorkerView
from services.router.queue.fair_class import QueueAhead
from services.router.records.attempt import Attempt
from services.router.rules import preempt
from services.router.tables import Tables

IN_SECOND_CELL = f", here, where it finds {CELL_SHARE:.0%} of its limits: its own cell is full"


class Refusal(NamedTuple):
    code: Code
    #: The reason, for an operator and for the client.
    sentence: str
    #: Seconds until another try may succeed; None = by the drain rate.
    retry_after: float | None = None
    #: Seconds that it takes at least, where the drain rate decides.
    at_least: float = 0.0


def set_cost(tables: Tables, attempt: Attempt, message: Submit) -> None:
    """Sets the predicted cost, the limits of the key, and the weight of the tenant."""
    output = tables.estimates.output_tokens(
        attempt.tenant, attempt.priority, attempt.request.max_tokens
    )
    attempt.output_tokens = output
    attempt.cost = predicted_cost(
        attempt.request.prompt_tokens, output, tables.admission.config.output_cost
    )
    attempt.other_cell = message.other_cell
    limits = tables.admission.keys.limits(attempt.key_id, message.limits)
    attempt.limits = _in_this_cell(tables, attempt, limits)
    if attempt.limits is not None and attempt.limits.weight > 0:
        attempt.weight = attempt.limits.weight
    budget_mib = attempt.limits.kv_budget_mib if attempt.limits is not None else 0.0
    of_class = tables.settings.kv_budgets[attempt.priority]
    attempt.budget_bytes = int(budget_mib * (1 << 20)) or of_class
    attempt.promise(tables.snapshots.totals(Role.DECODE).latest)


def _in_this_cell(tables: Tables, attempt: Attempt, limits: KeyLimits | None) -> KeyLimits | None:
    """Those of its key in this cell, which has to count in what it does in another one."""
    other = attempt.other_cell
    if limits is None or other is None:
        return limits
    if other.serves:
        return by_share(limits)
    if other.left_ms is not None:
        seconds, keys = other.left_ms / 1000, tables.admission.keys
        keys.take_over(attempt.key_id, limits, attempt.cost, seconds, attempt.received)
    return limits


def check_and_charge(tables: Tables, attempt: Attempt, now: float) -> Refusal | None:
    """Why the attempt is refused. None: it is admitted, and its key or the retry budget has been
    charged."""
    state = tables.admission
    again = attempt.number > 1
    if not again:
        residence = tables.estimates.decode_residence_s(1.0)
        other = attempt.other_cell or ONE_CELL
        asked = (attempt.key_id, attempt.limits, attempt.cost, residence, now)
        denied = state.keys.check(*asked, other)
        if denied is not None:
            sentence = denied.sentence + (IN_SECOND_CELL if other.serves else "")
            return Refusal(Code.RATE_LIMITED, sentence, denied.retry_after)
    reserved = again or state.reservations.redeem(attempt, now)
    found = _no_room(tables, attempt, now, reserved=reserved)
    if found is None and not again:
        found = _gated(tables, attempt) or _too_slow(tables, attempt, now, reserved=reserved)
    if found is not None:
        return found
    # A move is no failure, nor is it to make room; an abandoned stream goes on where nobody waits.
    ordered = attempt.moved_from or attempt.follows_parked
    budgeted = again and not attempt.abandoned and not ordered
    if budgeted and not state.retry_budget.take(state.largest_worker_slots, now):
        sentence = "too many requests are being tried again; the retry budget is used up"
        return Refusal(Code.RETRY_BUDGET, sentence)
    if not again:
        state.retry_budget.first_attempt()
    if attempt.limits is not None:
        state.keys.charge(attempt.key_id, attempt.limits, attempt.cost, now)
        state.charged.add(attempt.key)
    return None


def _no_room(tables: Tables, attempt: Attempt, now: float, *, reserved: bool) -> Refusal | None:
    waiting = tables.waiting
    room = waiting.has_room(len(attempt.body))
    if room and not reserved and len(waiting):
        expected = tables.admission.reservations.expected(now).requests
        room = len(waiting) + 1 + expected <= tables.limits.max_queue
        room = room and waiting.may_use_reserve(attempt)
    if room:
        return None
    held = f"{len(waiting)} requests ({waiting.bytes_held} bytes) already wait for a worker"
    return Refusal(Code.QUEUE_FULL, held)


def _gated(tables: Tables, attempt: Attempt) -> Refusal | None:
    state, config = tables.admission, tables.admission.config
    sentence = state.closed
    if sentence is None and attempt.priority is preempt.LOWEST:
        higher = sum(state.live[: attempt.priority])
        sentence = gates.kv_yields(state.kv_used, config.kv_yield, higher_live=higher)
    if sentence is None and len(tables.waiting):
        sentence = state.shedder.shed(attempt.priority, state.capacity, config.capacity_full)
    return None if sentence is None else Refusal(Code.OVERLOADED, sentence)


def _too_slow(tables: Tables, attempt: Attempt, now: float, *, reserved: bool) -> Refusal | None:
    """Whether the first token would come too late. Also sets `start_by`, after which its limit can
    no longer be met. Room is kept for reservations, but not while a worker would be idle for it."""
    config = tables.admission.config
    limit = ttft_limit_seconds(tables, attempt)
    if limit is None:
        return None
    ahead = tables.waiting.ahead(attempt)
    prediction = predicted(tables, attempt, ahead)
    if not reserved and prediction.wait >= prediction.prefill:
        expected = tables.admission.reservations.expected(now, limit)
        prediction = predicted(tables, attempt, ahead.plus(expected))
    attempt.start_by = attempt.received + limit - prediction.prefill - prediction.transfer
    allowed = limit * ((1.0 + config.slo_share) / 2 if reserved else config.slo_share)
    if prediction.ttft <= allowed:
        return None
    if prediction.wait <= 0 and _unsure(tables, now):
        attempt.start_by = attempt.received + limit
        return None
    sentence = f"{prediction.sentence()}; {allowed * 1000:.0f} ms are allowed"
    return Refusal(Code.OVERLOADED, sentence, at_least=prediction.ttft - allowed)


def ttft_limit_seconds(tables: Tables, attempt: Attempt) -> float | None:
    """Seconds within which the first token must come: the SLO, which the lowest class does not
    have, or the deadline if that is sooner."""
    slo = tables.limits.ttft_slo_ms / 1000 if attempt.priority is not preempt.LOWEST else 0.0
    deadline = attempt.deadline - attempt.received if attempt.deadline else 0.0
    limits = [limit for limit in (slo, deadline) if limit > 0]
    return min(limits, default=None)


def predicted(tables: Tables, attempt: Attempt, ahead: QueueAhead) -> Prediction:
    """The prediction for an attempt with `ahead` before it in the queue."""
    return predict(_load_snapshot(tables, attempt, ahead))


def _load_snapshot(tables: Tables, attempt: Attempt, ahead: QueueAhead) -> LoadSnapshot:
    estimates, request = tables.estimates, attempt.request
    prefills, decodes = tables.snapshots.totals(Role.PREFILL), tables.snapshots.totals(Role.DECODE)
    local = not _any_remote(tables) or bool(request.local_reason)
    pool = decodes if local else prefills
    seconds = estimates.local_prefill_seconds if local else estimates.prefill_seconds
    own = seconds(request.prompt_tokens)
    usual = request.prompt_tokens
    if ahead.requests >= 1:
        usual = max(1, round(ahead.prompt_tokens / ahead.requests))
    batch = decodes.requests // max(1, decodes.workers)
    output = attempt.output_tokens * estimates.step_seconds(batch)
    return LoadSnapshot(
        workers=pool.speed,
        computing=pool.queued,
        ahead=ahead,
        seconds_per_token=seconds(usual) / max(1, usual),
        own_seconds=own,
        own_kv=decodes.latest.kv_need(request.promised_tokens),
        ahead_kv=kv_ahead(decodes.latest, ahead),
        transfer_seconds=0.0 if local else _transfer_seconds(tables, request.prompt_tokens, own),
        decode=_pool(tables),
        decode_residence_s=estimates.decode_residence_s(own + output),
    )


def _any_remote(tables: Tables) -> bool:
    """Whether prompts are computed by other workers than decode them. Mixed workers compute their
    own."""
    prefills, decodes = tables.snapshots.totals(Role.PREFILL), tables.snapshots.totals(Role.DECODE)
    some = not decodes.workers or decodes.mixed < decodes.workers
    return bool(prefills.workers) and some and not tables.placement_memory.all_local


def kv_ahead(decode: WorkerView, ahead: QueueAhead) -> float:
    """What the requests ahead need on decode workers, as if all were of their mean length."""
    if not decode.kv_groups or ahead.requests < 1:
        return ahead.total_tokens
    return ahead.requests * decode.kv_need(round(ahead.total_tokens / ahead.requests))


def _transfer_seconds(tables: Tables, tokens: int, computing: float) -> float:
    """From the end of the prefill to D's first token. KV is sent while the prompt is computed; only
    what the wire could not move in that time counts."""
    estimates, decode = tables.estimates, tables.snapshots.totals(Role.DECODE).latest
    size = decode.kv_bytes(tokens, 0)
    return estimates.handoff_latency_s() + estimates.exposed_transfer_s(size, computing)


def _pool(tables: Tables) -> Pool:
    decodes, most = tables.snapshots.totals(Role.DECODE), tables.limits.max_active
    slots, free = decodes.slots, decodes.slots - decodes.requests
    if most:
        slots, free = min(slots, most), min(free, most - tables.active)
    kv_free = decodes.kv_tokens_max - decodes.kv_tokens
    for attempt in preempt.abandoned_victims(tables):
        free += 1
        kv_free += tables.workers[attempt.decode].held[attempt.key]
    return Pool(slots, free, decodes.kv_tokens_max, kv_free)


def _unsure(tables: Tables, now: float) -> bool:
    """Whether too little was measured, or nothing lately, to refuse because of an estimate."""
    config, estimates = tables.admission.config, tables.estimates
    rate = estimates.prefill if _any_remote(tables) else estimates.local_prefill
    stale = now - rate.measured_at > config.probe_ms / 1000
    return rate.count < config.trust_samples or stale


def retry_after_ms(tables: Tables, attempt: Attempt, refusal: Refusal, now: float) -> int:
    """When to tell the client to try again. The gateway of a further attempt tries it again itself,
    soon, because its client waits; it needs no reservation."""
    state, config = tables.admission, tables.admission.config
    least, most = config.retry_after_min_ms / 1000, config.retry_after_max_ms / 1000
    stretch = 1.0 + config.retry_after_jitter * state.uniform()
    if attempt.number > 1:
        return int(1000 * stretch * least)
    if refusal.retry_after is not None:
        return int(1000 * stretch * max(least, min(most, refusal.retry_after)))
    rate = tables.drain_rate.per_second(now)
    spacing = 1.0 / rate if rate else 0.0
    wait = max(least, refusal.at_least, (len(tables.waiting) + 1) * spacing)
    earliest, horizon = now + min(most, wait) * stretch, most * stretch
    due = state.reservations.reserve(attempt, earliest, spacing, now, horizon)
    return round(1000 * (due - now))


def told_exactly(tables: Tables, attempt: Attempt, seconds: float) -> int:
    """The same for a wait that is known, however long it is. Milliseconds."""
    state, config = tables.admission, tables.admission.config
    if attempt.number > 1:
        seconds = 0.0
    stretch = 1.0 + config.retry_after_jitter * state.uniform()
    return int(1000 * max(config.retry_after_min_ms / 1000, seconds) * stretch)
