"""Cost, the default: the predicted time to the first token and through the answer (DESIGN 6.2).

For P, what is ahead of the prompt and the part of it that P has not cached, at the measured prefill
rate, or what the pair needs to hand it over if that is longer. For D, the KV that must come (what D
has cached need not), the prompts it computes itself before this one, and how much slower each token
of the answer will come beside those who are there. A worker with the prefix but a queue thus loses
to an idle one as soon as waiting costs more than computing: the bound by load is in the formula.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.router.placement_types import Ask, Known, Rates, Score, WorkerView

NAME = "cost"
HELP = "predicted time to the first token and through the answer, from measured rates (default)"


def decode_scores(ask: Ask, known: Known, views: Sequence[WorkerView]) -> list[Score]:
    """(seconds, share of grantable KV tokens in use)."""
    rates, cached, prompt = known.rates, known.cached, ask.prompt_tokens
    slower = _answer_tokens(ask, rates) * rates.step_s_per_seq
    per_token = 1 / rates.local_tokens_per_s
    scores: list[Score] = []
    for view in views:
        missing = prompt - cached.get(view.identity, 0) if cached else prompt
        coming = per_token if known.local else view.kv_token_bytes / rates.kv_bytes_per_s
        seconds = missing * coming + view.queued * per_token + view.requests * slower
        scores.append((seconds, view.kv_tokens / view.kv_tokens_max))
    return scores


def prefill_scores(
    ask: Ask, known: Known, views: Sequence[WorkerView], decode: WorkerView
) -> list[Score]:
    """(seconds, requests). KV is handed over while it is computed, so the slower of the two
    counts."""
    rates, cached, prompt = known.rates, known.cached, ask.prompt_tokens
    per_token = 1 / rates.prefill_tokens_per_s
    coming = (prompt - cached.get(decode.identity, 0)) * decode.kv_token_bytes
    pair, usual, to = rates.pair_bytes_per_s, rates.kv_bytes_per_s, decode.name
    scores: list[Score] = []
    for view in views:
        own = prompt - cached.get(view.identity, 0) if cached else prompt
        moving = coming / (pair(view.name, to) if pair is not None else usual)
        scores.append((view.queued * per_token + max(own * per_token, moving), view.requests))
    return scores


def decode_sentence(ask: Ask, known: Known, view: WorkerView, candidates: int) -> str:
    seconds, share = decode_scores(ask, known, [view])[0]
    return (
        f"{view.name} costs {seconds * 1000:.1f} ms, the least of {candidates} decode workers with "
        f"room: {_cached(known, view)}{view.requests} requests beside it, {share:.0%} of its KV "
        "promised"
    )


def prefill_sentence(ask: Ask, known: Known, view: WorkerView, candidates: int) -> str:
    rate = known.rates.prefill_tokens_per_s
    return (
        f"{view.name} costs the least of {candidates} prefill workers with room: "
        f"{_cached(known, view)}{view.queued} prompt tokens ahead of its {ask.prompt_tokens} "
        f"at {rate:.0f}/s, handed over meanwhile"
    )


def _answer_tokens(ask: Ask, rates: Rates) -> float:
    return min(ask.max_tokens, rates.out_tokens) if rates.out_tokens else ask.max_tokens


def _cached(known: Known, view: WorkerView) -> str:
    cached = known.cached.get(view.identity, 0)
    return f"{cached} tokens cached, " if cached else ""
