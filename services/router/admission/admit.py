"""Whether a new request may come in: the rules in their order, and what a refusal says.

A first attempt meets its key's limits, the hard gates, the bounds of the queue and the prediction
of its first token. A later attempt continues what was admitted once: it meets the retry budget and
the bounds of the queue only.
"""

from __future__ import annotations

from typing import NamedTuple

from common.errors import Code
from common.messages import PriorityClass, Role, Submit
from services.router.admission import cost, gates
from services.router.admission.fair_class import Ahead
from services.router.admission.predict import Pool, Prediction, Situation, predict
from services.router.records import Try
from services.router.tables import Tables

LOWEST = max(PriorityClass)


class Refusal(NamedTuple):
    """`retry_after`: seconds, None = by the drain rate, but `at_least` this."""

    code: Code
    sentence: str
    retry_after: float | None = None
    at_least: float = 0.0


def price(tables: Tables, each: Try, message: Submit) -> None:
    """What it will likely cost, and what its tenant's weight is."""
    output = tables.estimates.output_tokens(each.tenant, each.priority, each.ask.max_tokens)
    each.output_tokens = output
    each.cost = cost.predicted(each.ask.prompt_tokens, output, tables.admission.config.output_cost)
    each.limits = tables.admission.keys.limits(each.key_id, message.limits)
    if each.limits is not None and each.limits.weight > 0:
        each.weight = each.limits.weight


def objection(tables: Tables, each: Try, now: float) -> Refusal | None:
    """Why it may not come in. None: it may, and its key and the retry budget are charged."""
    state = tables.admission
    again = each.attempt > 1
    if not again:
        stay = tables.estimates.stay_seconds(1.0)
        denied = state.keys.denies(each.key_id, each.limits, each.cost, stay, now)
        if denied is not None:
            return Refusal(Code.RATE_LIMITED, denied.sentence, denied.retry_after)
    promised = again or state.returns.claim(each, now)
    found = _no_room(tables, each, now, promised=promised)
    if found is None and not again:
        found = _gated(tables, each) or _too_slow(tables, each, now, promised=promised)
    if found is not None:
        return found
    if again and not state.retry_budget.take(state.largest_worker, now):
        sentence = "too many requests are being tried again; the retry budget is used up"
        return Refusal(Code.RETRY_BUDGET, sentence)
    if not again:
        state.retry_budget.first_attempt()
    if each.limits is not None:
        state.keys.charge(each.key_id, each.limits, each.cost, now)
        state.charged.add(each.key)
    return None


def _no_room(tables: Tables, each: Try, now: float, *, promised: bool) -> Refusal | None:
    waiting = tables.waiting
    room = waiting.has_room(len(each.body))
    if room and not promised and len(waiting):
        expected = tables.admission.returns.expected(now).requests
        room = len(waiting) + 1 + expected <= tables.limits.max_queue
        room = room and waiting.may_use_reserve(each)
    if room:
        return None
    held = f"{len(waiting)} requests ({waiting.bytes_held} bytes) already wait for a worker"
    return Refusal(Code.QUEUE_FULL, held)


def _gated(tables: Tables, each: Try) -> Refusal | None:
    state, config = tables.admission, tables.admission.config
    sentence = state.closed
    if sentence is None and each.priority is LOWEST:
        higher = sum(state.live[: each.priority])
        sentence = gates.kv_yields(state.kv_used, config.kv_yield, higher_live=higher)
    if sentence is None and len(tables.waiting):
        sentence = state.thinning.refuses(each.priority, state.capacity, config.capacity_full)
    return None if sentence is None else Refusal(Code.OVERLOADED, sentence)


def _too_slow(tables: Tables, each: Try, now: float, *, promised: bool) -> Refusal | None:
    """Also notes the latest start at which its limit can still be met. Room is kept for who comes
    by appointment, but not while a worker would stand idle for it."""
    config = tables.admission.config
    limit = limit_seconds(tables, each)
    if limit is None:
        return None
    ahead = tables.waiting.ahead(each)
    prediction = predicted(tables, each, ahead)
    if not promised and prediction.wait >= prediction.prefill:
        expected = tables.admission.returns.expected(now, limit)
        prediction = predicted(tables, each, ahead.plus(expected))
    each.start_by = each.received + limit - prediction.prefill - prediction.transfer
    allowed = limit * ((1.0 + config.slo_share) / 2 if promised else config.slo_share)
    if prediction.ttft <= allowed:
        return None
    if prediction.wait <= 0 and _unsure(tables, now):
        each.start_by = each.received + limit
        return None
    sentence = f"{prediction.sentence()}; {allowed * 1000:.0f} ms are allowed"
    return Refusal(Code.OVERLOADED, sentence, at_least=prediction.ttft - allowed)


def limit_seconds(tables: Tables, each: Try) -> float | None:
    """In which the first token must come: the SLO, save for the lowest class, or its deadline if
    that is sooner."""
    slo = tables.limits.ttft_slo_ms / 1000 if each.priority is not LOWEST else 0.0
    deadline = each.deadline - each.received if each.deadline else 0.0
    limits = [limit for limit in (slo, deadline) if limit > 0]
    return min(limits, default=None)


def predicted(tables: Tables, each: Try, ahead: Ahead) -> Prediction:
    """With `ahead` of it in the queue."""
    return predict(_situation(tables, each, ahead))


def _situation(tables: Tables, each: Try, ahead: Ahead) -> Situation:
    estimates, ask = tables.estimates, each.ask
    prefills, decodes = tables.board.totals(Role.PREFILL), tables.board.totals(Role.DECODE)
    local = not prefills.workers or tables.placing.all_local or bool(ask.local_reason)
    pool = decodes if local else prefills
    seconds = estimates.local_prefill_seconds if local else estimates.prefill_seconds
    own = seconds(ask.prompt_tokens)
    usual = ask.prompt_tokens
    if ahead.requests >= 1:
        usual = max(1, round(ahead.prompt_tokens / ahead.requests))
    batch = decodes.requests // max(1, decodes.workers)
    output = each.output_tokens * estimates.step_seconds(batch)
    return Situation(
        workers=pool.workers,
        computing=pool.queued,
        ahead=ahead,
        seconds_per_token=seconds(usual) / max(1, usual),
        own_seconds=own,
        own_kv=ask.total_tokens,
        transfer_seconds=0.0 if local else _handing_over(tables, ask.prompt_tokens, own),
        decode=_pool(tables),
        stay=estimates.stay_seconds(own + output),
    )


def _handing_over(tables: Tables, tokens: int, computing: float) -> float:
    """From the prompt's being computed to D's first token: KV leaves while it is computed, and what
    the wire could not move meanwhile is left."""
    estimates, decodes = tables.estimates, tables.board.totals(Role.DECODE)
    size = tokens * decodes.kv_token_bytes / max(1, decodes.workers)
    return estimates.tail_seconds() + estimates.outlasting_seconds(size, computing)


def _pool(tables: Tables) -> Pool:
    decodes, most = tables.board.totals(Role.DECODE), tables.limits.max_active
    slots, free = decodes.slots, decodes.slots - decodes.requests
    if most:
        slots, free = min(slots, most), min(free, most - tables.active)
    kv_free = decodes.kv_tokens_max - decodes.kv_tokens
    return Pool(slots, free, decodes.kv_tokens_max, kv_free)


def _unsure(tables: Tables, now: float) -> bool:
    """Too little was measured, or nothing lately, to refuse on the word of an estimate."""
    config, estimates = tables.admission.config, tables.estimates
    prefills = tables.board.totals(Role.PREFILL).workers
    rate = estimates.prefill if prefills else estimates.local_prefill
    stale = now - rate.measured_at > config.probe_ms / 1000
    return rate.count < config.trust_samples or stale


def retry_after_ms(tables: Tables, each: Try, refusal: Refusal, now: float) -> int:
    """On a refusal that a later try may pass."""
    state, config = tables.admission, tables.admission.config
    least, most = config.retry_after_min_ms / 1000, config.retry_after_max_ms / 1000
    stretch = 1.0 + config.retry_after_jitter * state.jitter.next()
    if refusal.retry_after is not None:
        return int(1000 * stretch * max(least, min(most, refusal.retry_after)))
    rate = tables.drain_rate.per_second(now)
    spacing = 1.0 / rate if rate else 0.0
    wait = max(least, refusal.at_least, (len(tables.waiting) + 1) * spacing)
    due = state.returns.book(each, now + min(most, wait) * stretch, spacing, now, most * stretch)
    return round(1000 * (due - now))
