"""Where a request goes: pure, from snapshots to a `Placement` or to what it must wait for.

Filters come first (room now, equal fingerprints), the policy only ranks what is left. D is chosen
before P, and between them the governor says whether there shall be a P at all. A prefill worker
takes another prompt while it has less than `PREFILL_AHEAD_TOKENS` ahead: enough to batch and never
to starve, little enough that D's blocks are not held through P's queue, for the queue's place is
the router. Snapshots count KV in whole blocks, so what fits in tokens fits in blocks. This is the
hottest code of the router at a thousand workers: it walks them in comprehensions, and orders no
more of them than are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from services.router import governor
from services.router.placement_types import (
    CANDIDATES_MAX,
    NOTHING,
    Ask,
    Candidate,
    Known,
    Placement,
    Policy,
    Score,
    WaitFor,
)
from services.router.placement_types import WorkerView as View

PREFILL_AHEAD_TOKENS = 16_384
SORTED_MAX = 64

Ranked = list[tuple[Score, int, str, View]]
"""(score, number of its last placement, name, worker), best first."""


def place(
    ask: Ask,
    decodes: Sequence[View],
    prefills: Sequence[View],
    policy: Policy,
    known: Known = NOTHING,
) -> Placement | WaitFor:
    """`decodes`, `prefills`: all ready workers."""
    if not decodes:
        return WaitFor.WORKER
    left = _decodes_with_room(ask, decodes)
    if not left:
        slots = any(view.requests < view.requests_max for view in decodes)
        return WaitFor.KV if slots else WaitFor.SLOT
    while left:
        ranked = _best(policy.decode_scores(ask, known, left), left)
        decode = ranked[0][-1]
        verdict = governor.decide(ask, decode, prefills, known)
        if not verdict.eligible:
            return _placement(policy, ask, known, (ranked, len(left)), ([], 0), verdict)
        able = _prefills_with_room(ask, verdict.eligible)
        if able:
            scored = _best(policy.prefill_scores(ask, known, able, decode), able)
            return _placement(policy, ask, known, (ranked, len(left)), (scored, len(able)), verdict)
        left = [view for view in left if view.fingerprint != decode.fingerprint]
    return WaitFor.PREFILL


def _decodes_with_room(ask: Ask, views: Sequence[View]) -> list[View]:
    total = ask.total_tokens
    return [
        view
        for view in views
        if view.requests < view.requests_max
        and total <= view.kv_tokens_max - view.kv_tokens
        and total <= view.max_model_len
    ]


def _prefills_with_room(ask: Ask, views: Sequence[View]) -> list[View]:
    prompt = ask.prompt_tokens
    ahead_max = PREFILL_AHEAD_TOKENS - prompt
    return [
        view
        for view in views
        if (view.queued == 0 or view.queued <= ahead_max)
        and prompt <= view.kv_tokens_max - view.kv_tokens
        and view.requests < view.requests_max
    ]


def _best(scores: list[Score], views: list[View]) -> Ranked:
    """The first `CANDIDATES_MAX`. Equals go in turn, so that an idle fleet fills all its prefix
    caches and not that of one worker."""
    turns, names = [view.given for view in views], [view.name for view in views]
    rows = zip(scores, turns, names, views, strict=True)
    if len(views) > SORTED_MAX:
        return nsmallest(CANDIDATES_MAX, rows)
    return sorted(rows)[:CANDIDATES_MAX]


def _placement(
    policy: Policy,
    ask: Ask,
    known: Known,
    decodes: tuple[Ranked, int],
    prefills: tuple[Ranked, int],
    verdict: governor.Verdict,
) -> Placement:
    """`decodes`, `prefills`: the best, and how many there were."""
    (best_d, count_d), (best_p, count_p) = decodes, prefills
    decode = best_d[0][-1]
    prefill = best_p[0][-1] if best_p else None
    parts = [verdict.sentence] if verdict.sentence else []
    if prefill is not None:
        parts.append(policy.prefill_sentence(ask, known, prefill, count_p))
    parts.append(policy.decode_sentence(ask, known, decode, count_d))
    candidates = [Candidate("prefill", name, score) for score, _, name, _ in best_p]
    candidates += [Candidate("decode", name, score) for score, _, name, _ in best_d]
    return Placement(
        decode, prefill, policy.NAME, "; ".join(parts), tuple(candidates), verdict.weighed
    )
