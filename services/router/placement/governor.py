"""Decides for each request whether its prompt is computed locally (by D) or remotely (by P).

Theory of operation: a remote prefill pays only if D need not compute most of the prompt. vLLM
recomputes the last prompt token on D in any case, and KV is handed over in whole blocks, so D
computes a prompt of at most one block sooner than it receives it. For longer prompts, `auto`
compares the seconds that clients would wait in sum. Remote: P's queue, the prompt and the handoff.
Local: D's queue and the prompt, plus what D's running streams lose, because each of their steps
then carries a chunk of this prompt; a prefill on P delays no stream, unless P is a mixed worker
with streams of its own. A mixed D computes its prompts itself, whatever that costs. Who computes it
loads the request's LoRA adapter first where it is not in memory; D does so while P computes. The
decision for a prompt size changes only when the other side is better by `HYSTERESIS`; otherwise
noise near the crossover would flip the whole fleet. Until prefills and handoffs were measured the
decision is remote, which measures both. After many local decisions in a row, one prompt goes remote
to measure again.
"""

from __future__ import annotations

from typing import NamedTuple

from services.router.placement.fingerprint_mismatch import explain_mismatch
from services.router.placement.types import PlacementContext, Rates, Views, WorkerView

HYSTERESIS = 0.2
CHUNK_TOKENS = 2_048


class PrefillDecision(NamedTuple):
    """Where the prompt of one request is computed."""

    #: Prefill workers that may ever take this prompt for this D; empty = local prefill.
    eligible: Views
    #: Why; empty where local prefill was not considered.
    sentence: str
    #: Whether local and remote prefill were both possible and were compared.
    compared: bool = False


def decide(context: PlacementContext, decode: WorkerView, prefills: Views) -> PrefillDecision:
    """Decides by what is possible and worthwhile, not by which workers are busy now."""
    reason = _reason_for_local(context, decode, prefills)
    if reason:
        return PrefillDecision((), f"local prefill: {reason}")
    prompt, fingerprint = context.request.prompt_tokens, decode.fingerprint
    adapter = context.request.adapter
    able = [
        view
        for view in prefills
        if (view.fingerprint == fingerprint or view.may_give(decode))
        and (not adapter or view.has(adapter))
        and prompt < view.max_model_len
        and (view.kv_need(prompt, computes=True) if view.kv_groups else prompt)
        <= view.kv_tokens_max
    ]
    if not able:
        return PrefillDecision((), f"local prefill: {_none_able(context, decode, prefills)}")
    sentence = ""
    if context.excluded_pairs:
        excluded = context.excluded_pairs
        paired = [view for view in able if (view.identity, decode.identity) not in excluded]
        if not paired:
            reason = (
                f"{decode.name} is paired with no prefill worker now, after handoffs that failed"
            )
            return PrefillDecision((), f"local prefill: {reason}")
        if apart := len(able) - len(paired):
            sentence = f"{apart} prefill workers are not paired with {decode.name} now"
        able = paired
    if context.options.remote_prefill == "auto" and context.rates.measured:
        return _compare(context, decode, able)
    return PrefillDecision(able, sentence)


def _none_able(context: PlacementContext, decode: WorkerView, prefills: Views) -> str:
    if not any(view.may_give(decode) for view in prefills):
        return explain_mismatch(decode, prefills)
    if not any(view.has(context.request.adapter) for view in prefills):
        return "no ready prefill worker has its adapter"
    prompt = context.request.prompt_tokens
    return f"{prompt} prompt tokens are more than any ready prefill worker can hold"


def _reason_for_local(context: PlacementContext, decode: WorkerView, prefills: Views) -> str:
    """Why remote prefill is not possible or cannot pay; empty: it may be."""
    if context.request.local_reason:
        return context.request.local_reason
    if context.options.mode != "disaggregated":
        return f"mode is {context.options.mode}, every worker does both"
    if decode.mixed:
        return f"{decode.name} is mixed and computes the prompts of its streams itself"
    if context.options.remote_prefill == "never":
        return "remote_prefill is never"
    if decode.is_one_block(context.request.prompt_tokens):
        return (
            f"{context.request.prompt_tokens} prompt tokens are at most one KV block of "
            f"{decode.block_tokens}, which is computed sooner than handed over"
        )
    return "" if prefills else "no prefill worker is ready"


def _compare(
    context: PlacementContext, decode: WorkerView, able: list[WorkerView]
) -> PrefillDecision:
    remote = min([_remote_seconds(context, decode, view) for view in able])
    local = _local_seconds(context, decode)
    uncached = context.request.prompt_tokens - context.cached.get(decode.identity, 0)
    harm = harm_seconds(context.rates, uncached, decode, decode.requests)
    if context.was_remote is None:
        limit = local + harm
    else:
        limit = (local + harm) * (1 + HYSTERESIS if context.was_remote else 1 - HYSTERESIS)
    terms = (
        f"remote {remote * 1000:.0f} ms, local {local * 1000:.0f} ms and "
        f"{harm * 1000:.0f} ms that {decode.requests} running streams would lose"
    )
    if context.probe:
        return PrefillDecision(able, f"remote prefill, to measure it again: {terms}")
    if remote < limit:
        return PrefillDecision(able, f"remote prefill pays: {terms}", compared=True)
    return PrefillDecision((), f"local prefill pays: {terms}", compared=True)


def _remote_seconds(context: PlacementContext, decode: WorkerView, prefill: WorkerView) -> float:
    """Seconds to the first token with this P. KV is handed over while it is computed."""
    rates, cached = context.rates, context.cached
    rate = rates.prefill_tokens_per_s * prefill.prefill_speed
    uncached = context.request.prompt_tokens - cached.get(prefill.identity, 0)
    size = decode.kv_bytes(context.request.prompt_tokens, cached.get(decode.identity, 0))
    pair = rates.pair_bytes_per_s
    bytes_per_s = pair(prefill.name, decode.name) if pair is not None else rates.kv_bytes_per_s
    seconds = prefill.queued / rate + max(uncached / rate, size / bytes_per_s) + rates.handoff_s
    seconds += harm_seconds(rates, uncached, prefill, prefill.decoding)
    adapter = context.request.adapter
    return max(prefill.load_seconds(adapter) + seconds, decode.load_seconds(adapter))


def _local_seconds(context: PlacementContext, decode: WorkerView) -> float:
    """Seconds to the first token when D computes the prompt."""
    tokens = decode.queued + context.request.prompt_tokens - context.cached.get(decode.identity, 0)
    seconds = tokens / (context.rates.local_tokens_per_s * decode.prefill_speed)
    return decode.load_seconds(context.request.adapter) + seconds


def harm_seconds(rates: Rates, tokens: int, view: WorkerView, streams: int) -> float:
    """Seconds that so many running streams of a worker lose in sum while it computes so many tokens
    of a prompt: the whole of each step, except the part that the step would have taken anyway."""
    if not streams:
        return 0.0
    rate = rates.local_tokens_per_s * view.prefill_speed
    chunk = min(tokens, CHUNK_TOKENS) / rate
    step = (rates.step_s + rates.step_s_per_seq * streams) / view.step_speed
    lost = chunk / (chunk + step) if chunk else 0.0
    return tokens / rate * lost * streams
