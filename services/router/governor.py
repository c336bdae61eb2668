"""Local or remote prefill, decided per request.

A remote prefill pays only if D need not compute most of the prompt. vLLM recomputes the last prompt
token on D whatever arrives, and KV travels in whole blocks, so a prompt that fits into one block is
computed sooner on D than it is handed over. Beyond that, `auto` compares what clients will wait in
sum: remote, until P's queue and the prompt are computed and the KV is over; local, until D has
computed it, plus the harm, which is what D's running streams lose meanwhile, because each of their
steps then carries a chunk of this prompt. A prefill on P stops no stream. The same size of prompt
changes sides only when the other side is better by `HYSTERESIS`, or near the crossover each noise
of a measurement would turn the fleet over. Until prefills and handoffs were measured, remote: it
is what measures both; and where local has won for long, one prompt goes remote to measure again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.router.pairing import why_unpaired
from services.router.placement_types import NOTHING, Ask, Known, WorkerView

HYSTERESIS = 0.2
CHUNK_TOKENS = 2_048


class Verdict(NamedTuple):
    """`eligible`: prefill workers that may ever take this prompt for this D; empty = local.
    `sentence` says why; empty where remote was not a question. `weighed`: both ways were possible
    and were compared."""

    eligible: Sequence[WorkerView]
    sentence: str
    weighed: bool = False


def decide(
    ask: Ask, decode: WorkerView, prefills: Sequence[WorkerView], known: Known = NOTHING
) -> Verdict:
    """Looks at what is possible and worthwhile, not at who is busy now."""
    forced = _forced(ask, decode, prefills, known)
    if forced:
        return Verdict((), f"local prefill: {forced}")
    prompt, fingerprint = ask.prompt_tokens, decode.fingerprint
    able = [
        view
        for view in prefills
        if view.fingerprint == fingerprint
        and prompt < view.max_model_len
        and prompt <= view.kv_tokens_max
    ]
    if not able:
        return Verdict((), f"local prefill: {_nobody(ask, decode, prefills)}")
    if not known.barred:
        return _choose(ask, decode, able, known, "")
    paired = [view for view in able if (view.identity, decode.identity) not in known.barred]
    if not paired:
        sentence = f"{decode.name} is paired with no prefill worker now, after handoffs that failed"
        return Verdict((), f"local prefill: {sentence}")
    apart = len(able) - len(paired)
    sentence = f"{apart} prefill workers are not paired with {decode.name} now" if apart else ""
    return _choose(ask, decode, paired, known, sentence)


def _choose(
    ask: Ask, decode: WorkerView, able: list[WorkerView], known: Known, sentence: str
) -> Verdict:
    if known.rules.remote_prefill == "auto" and known.rates.measured:
        return _weigh(ask, decode, able, known)
    return Verdict(able, sentence)


def _nobody(ask: Ask, decode: WorkerView, prefills: Sequence[WorkerView]) -> str:
    if all(view.fingerprint != decode.fingerprint for view in prefills):
        return why_unpaired(decode, prefills)
    return f"{ask.prompt_tokens} prompt tokens are more than any ready prefill worker can hold"


def _forced(ask: Ask, decode: WorkerView, prefills: Sequence[WorkerView], known: Known) -> str:
    if ask.local_reason:
        return ask.local_reason
    if known.rules.mode != "disaggregated":
        return f"mode is {known.rules.mode}, every worker does both"
    if known.rules.remote_prefill == "never":
        return "remote_prefill is never"
    if ask.prompt_tokens <= decode.block_tokens:
        return (
            f"{ask.prompt_tokens} prompt tokens are at most one KV block of "
            f"{decode.block_tokens}, which is computed sooner than handed over"
        )
    return "" if prefills else "no prefill worker is ready"


def _weigh(ask: Ask, decode: WorkerView, able: list[WorkerView], known: Known) -> Verdict:
    remote = min([_remote_seconds(ask, decode, view, known) for view in able])
    local = _local_seconds(ask, decode, known)
    harm = _harm_seconds(ask, decode, known)
    if known.was_remote is None:
        bar = local + harm
    else:
        bar = (local + harm) * (1 + HYSTERESIS if known.was_remote else 1 - HYSTERESIS)
    terms = (
        f"remote {remote * 1000:.0f} ms, local {local * 1000:.0f} ms and "
        f"{harm * 1000:.0f} ms that {decode.requests} running streams would lose"
    )
    if known.probe:
        return Verdict(able, f"remote prefill, to measure it again: {terms}")
    if remote < bar:
        return Verdict(able, f"remote prefill pays: {terms}", weighed=True)
    return Verdict((), f"local prefill pays: {terms}", weighed=True)


def _remote_seconds(ask: Ask, decode: WorkerView, prefill: WorkerView, known: Known) -> float:
    """To the first token by this P: KV is handed over while it is computed."""
    rates, cached = known.rates, known.cached
    own = ask.prompt_tokens - cached.get(prefill.identity, 0)
    coming = (ask.prompt_tokens - cached.get(decode.identity, 0)) * decode.kv_token_bytes
    pair, rate = rates.pair_bytes_per_s, rates.prefill_tokens_per_s
    bytes_per_s = pair(prefill.name, decode.name) if pair is not None else rates.kv_bytes_per_s
    return prefill.queued / rate + max(own / rate, coming / bytes_per_s) + rates.handoff_s


def _local_seconds(ask: Ask, decode: WorkerView, known: Known) -> float:
    """To the first token by D alone."""
    compute = decode.queued + ask.prompt_tokens - known.cached.get(decode.identity, 0)
    return compute / known.rates.local_tokens_per_s


def _harm_seconds(ask: Ask, decode: WorkerView, known: Known) -> float:
    """What D's running streams lose, in sum, while it computes this prompt: all of each step but
    the part that the step would have taken anyway."""
    rates = known.rates
    tokens = ask.prompt_tokens - known.cached.get(decode.identity, 0)
    chunk = min(tokens, CHUNK_TOKENS) / rates.local_tokens_per_s
    step = rates.step_s + rates.step_s_per_seq * decode.requests
    lost = chunk / (chunk + step) if chunk else 0.0
    return tokens / rates.local_tokens_per_s * lost * decode.requests
