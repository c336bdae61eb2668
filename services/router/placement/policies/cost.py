"""Cost, the default: the predicted time to the first token and through the answer .

See docs/architecture.md, "Admission, placement, backpressure".

The cost of a P is the time to compute the prompts ahead of this one, plus the time to compute the
part of this prompt that P has not cached, or to pull what another worker's store has of it, or to
hand its KV over if that takes longer, plus what the streams of P lose meanwhile if it is mixed. The
cost of a D is the time to receive the KV that it has not cached, to compute the prompts that it
computes itself before this one, and to make the answer beside its other requests. A worker that is
faster or slower than its fleet, by what was measured of it, computes and decodes accordingly.
Either loads the request's LoRA adapter first, if it is not in memory. The formula contains the load
bound: a worker that has the prefix and a queue loses to an idle worker as soon as waiting costs
more than computing.
"""

from __future__ import annotations

from services.router.placement.governor import harm_seconds
from services.router.placement.pull import best_pull
from services.router.placement.types import (
    PlacementContext,
    Rates,
    ResourceRequest,
    Score,
    Views,
    WorkerView,
)

NAME = "cost"
HELP = "predicted time to the first token and through the answer, from measured rates (default)"


def decode_scores(context: PlacementContext, views: Views) -> list[Score]:
    """(seconds, share of grantable KV tokens in use)."""
    rates, cached, prompt = context.rates, context.cached, context.request.prompt_tokens
    answer = _answer_tokens(context.request, rates)
    alone, slower = answer * rates.step_s, answer * rates.step_s_per_seq
    per_token, adapter = 1 / rates.local_tokens_per_s, context.request.adapter
    scores: list[Score] = []
    for view in views:
        missing = prompt - cached.get(view.identity, 0) if cached else prompt
        if context.local or view.mixed:
            received = missing * per_token / view.prefill_speed
        elif view.kv_groups:
            received = view.kv_bytes(prompt, prompt - missing) / rates.kv_bytes_per_s
        else:
            received = missing * view.kv_token_bytes / rates.kv_bytes_per_s
        steps = (alone + view.requests * slower) / view.step_speed
        seconds = received + view.queued * per_token / view.prefill_speed + steps
        if adapter:
            seconds += view.adapters[adapter]
        scores.append((seconds, view.kv_tokens / view.kv_tokens_max))
    return scores


def prefill_scores(context: PlacementContext, views: Views, decode: WorkerView) -> list[Score]:
    """(seconds, requests). KV is handed over while it is computed, so the slower one counts."""
    rates, cached, prompt = context.rates, context.cached, context.request.prompt_tokens
    per_token, adapter = 1 / rates.prefill_tokens_per_s, context.request.adapter
    size = decode.kv_bytes(prompt, cached.get(decode.identity, 0))
    pair, mean, to = rates.pair_bytes_per_s, rates.kv_bytes_per_s, decode.name
    scores: list[Score] = []
    for view in views:
        uncached = prompt - cached.get(view.identity, 0) if cached else prompt
        transfer = size / (pair(view.name, to) if pair is not None else mean)
        compute = uncached * per_token / view.prefill_speed
        pull = best_pull(context, view) if context.stored else None
        if pull is not None:
            compute -= max(0.0, pull.gain_s)
        seconds = view.queued * per_token / view.prefill_speed + max(compute, transfer)
        if adapter:
            seconds += view.adapters[adapter]
        if view.decoding:
            seconds += harm_seconds(rates, uncached, view, view.decoding)
        scores.append((seconds, view.requests))
    return scores


def decode_sentence(context: PlacementContext, view: WorkerView, candidates: int) -> str:
    seconds, share = decode_scores(context, [view])[0]
    return (
        f"{view.name} costs {seconds * 1000:.1f} ms, the least of {candidates} decode workers with "
        f"room: {_cached(context, view)}{view.requests} requests beside it, {share:.0%} of its KV "
        "promised"
    )


def prefill_sentence(context: PlacementContext, view: WorkerView, candidates: int) -> str:
    rate, prompt = context.rates.prefill_tokens_per_s, context.request.prompt_tokens
    return (
        f"{view.name} costs the least of {candidates} prefill workers with room: "
        f"{_cached(context, view)}{view.queued} prompt tokens ahead of its {prompt} "
        f"at {rate:.0f}/s, handed over meanwhile"
    )


def _answer_tokens(request: ResourceRequest, rates: Rates) -> float:
    return min(request.max_tokens, rates.out_tokens) if rates.out_tokens else request.max_tokens


def _cached(context: PlacementContext, view: WorkerView) -> str:
    cached, adapter = context.cached.get(view.identity, 0), context.request.adapter
    loads = view.adapters[adapter] if adapter else 0.0
    told = f"{cached} tokens cached, " if cached else ""
    return f"{told}{loads * 1000:.0f} ms to load its adapter, " if loads else told
