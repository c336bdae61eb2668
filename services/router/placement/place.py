"""Chooses workers for one request: a pure function from snapshots to a `Placement`, or to what the
request must wait for.

Filters come first (room now, equal fingerprints); the policy only ranks the workers that are left.
D is chosen before P, and between them the governor decides whether the prompt goes to a P at all.
Where no P has room, a mixed D may still compute the prompt itself. A prefill worker takes another
prompt while it has less than `PREFILL_AHEAD_TOKENS` ahead of it. That is enough to fill its
batches, and little enough that D's blocks are not held while P works through a queue: requests wait
in the router. Snapshots count KV in whole blocks, so a request that fits in tokens fits in blocks.
With a thousand workers this is the hottest code of the router, so it filters in comprehensions and
sorts no more workers than it shows.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import NamedTuple

from services.router.placement import governor
from services.router.placement.pull import best_pull, is_own, pull_sentence
from services.router.placement.types import (
    CANDIDATES_MAX,
    Candidate,
    Placement,
    PlacementContext,
    Policy,
    ResourceRequest,
    Score,
    Views,
    WaitFor,
    WorkerView,
)

PREFILL_AHEAD_TOKENS = 16_384
SORTED_MAX = 64
#: Prompt tokens with which a worker counts as busy for the lowest class: a prompt of a higher class
#: that comes then waits for no more of it.
LOWEST_AHEAD_TOKENS = 256

Ranked = list[tuple[Score, int, str, WorkerView]]
"""(score, number of its last placement, name, worker), best first."""


def place(
    context: PlacementContext, decodes: Views, prefills: Views, policy: Policy
) -> Placement | WaitFor:
    """`decodes` and `prefills` are all ready workers."""
    if not decodes:
        return WaitFor.WORKER
    request = context.request
    fitting = _decodes_with_room(request, decodes)
    if not fitting:
        slots = any(view.requests < view.requests_max for view in decodes)
        return WaitFor.KV if slots else WaitFor.SLOT
    while fitting:
        ranked = _best(policy.decode_scores(context, fitting), fitting)
        decode = ranked[0][-1]
        decision = governor.decide(context, decode, prefills)
        if not decision.eligible:
            return _placement(policy, context, (ranked, len(fitting)), ([], 0), decision)
        able = _prefills_with_room(request, decision.eligible)
        if able:
            scored = _best(policy.prefill_scores(context, able, decode), able)
            return _placement(
                policy, context, (ranked, len(fitting)), (scored, len(able)), decision
            )
        fitting = _others_to_try(context, decode, fitting)
    return WaitFor.PREFILL


def _others_to_try(
    context: PlacementContext, decode: WorkerView, fitting: list[WorkerView]
) -> list[WorkerView]:
    """Where no prefill worker of this one has room: those that may have other prefill workers."""
    if any(apart == decode.identity for _, apart in context.excluded_pairs):
        return [view for view in fitting if view.identity != decode.identity]
    return [view for view in fitting if view.mixed or view.fingerprint != decode.fingerprint]


def with_headroom(
    prompt_tokens: int, decodes: Views, prefills: Views, reserve: float
) -> tuple[list[WorkerView], list[WorkerView]] | None:
    """The workers on which a request of the lowest class is in nobody's way: decode workers with
    more than the share `reserve` of their slots free, and fewer requests than that without a first
    token, whose prompts would lengthen one step; and workers that compute no prompt, which a prompt
    of one block does without. None: there are none."""
    ahead_max = LOWEST_AHEAD_TOKENS - prompt_tokens
    calm = [view for view in prefills if view.queued == 0 or view.queued <= ahead_max]
    roomy = [
        view
        for view in decodes
        if view.requests < view.requests_max - (kept := int(view.requests_max * reserve))
        and view.requests - view.decoding < max(1, kept)
        and (view.queued == 0 or view.queued <= ahead_max)
    ]
    if not calm and prefills:
        roomy = [view for view in roomy if view.is_one_block(prompt_tokens)]
    return (roomy, calm) if roomy else None


class Likely(NamedTuple):
    """The worker that would compute a prompt, and whether it is a decode worker."""

    view: WorkerView
    local: bool


def likely(
    context: PlacementContext, decodes: Views, prefills: Views, policy: Policy
) -> Likely | None:
    """As `place` would choose if all workers had room; None if there is no decode worker."""
    if not decodes:
        return None
    decode = _best(policy.decode_scores(context, decodes), list(decodes))[0][-1]
    able = governor.decide(context, decode, prefills).eligible
    if not able:
        return Likely(decode, local=True)
    scores = policy.prefill_scores(context, able, decode)
    return Likely(_best(scores, list(able))[0][-1], local=False)


def rooms(request: ResourceRequest, views: Views) -> int:
    """How many requests like this one these workers could take now."""
    total_tokens, promised = request.total_tokens, request.promised_tokens
    return sum(
        min(
            max(0, view.requests_max - view.requests),
            (view.kv_tokens_max - view.kv_tokens) // max(1, view.kv_need(promised)),
        )
        for view in views
        if total_tokens <= view.max_model_len and view.suits(request)
    )


def _decodes_with_room(request: ResourceRequest, views: Views) -> list[WorkerView]:
    total, promised = request.total_tokens, request.promised_tokens
    return [
        view
        for view in views
        if view.requests < view.requests_max
        and (view.kv_need(promised) if view.kv_groups else promised)
        <= view.kv_tokens_max - view.kv_tokens
        and total <= view.max_model_len
    ]


def _prefills_with_room(request: ResourceRequest, views: Views) -> list[WorkerView]:
    prompt = request.prompt_tokens
    ahead_max = PREFILL_AHEAD_TOKENS - prompt
    return [
        view
        for view in views
        if (view.queued == 0 or view.queued <= ahead_max)
        and (view.kv_need(prompt, computes=True) if view.kv_groups else prompt)
        <= view.kv_tokens_max - view.kv_tokens
        and view.requests < view.requests_max
    ]


def _best(scores: list[Score], views: list[WorkerView]) -> Ranked:
    """The best `CANDIDATES_MAX`. Workers of equal score take turns, so that an idle fleet fills all
    its prefix caches and not that of one worker."""
    serials, names = [view.last_placed_serial for view in views], [view.name for view in views]
    rows = zip(scores, serials, names, views, strict=True)
    if len(views) > SORTED_MAX:
        return nsmallest(CANDIDATES_MAX, rows)
    return sorted(rows)[:CANDIDATES_MAX]


def _placement(
    policy: Policy,
    context: PlacementContext,
    decodes: tuple[Ranked, int],
    prefills: tuple[Ranked, int],
    decision: governor.PrefillDecision,
) -> Placement:
    """`decodes` and `prefills`: the best candidates of each role, and how many there were."""
    (best_d, count_d), (best_p, count_p) = decodes, prefills
    decode = best_d[0][-1]
    prefill = best_p[0][-1] if best_p else None
    parts = [decision.sentence] if decision.sentence else []
    if prefill is not None:
        parts.append(policy.prefill_sentence(context, prefill, count_p))
    parts.append(policy.decode_sentence(context, decode, count_d))
    computes, local = (decode, True) if prefill is None else (prefill, False)
    pull = None if context.request.local_reason else best_pull(context, computes, local=local)
    if pull is not None:
        parts.append(pull_sentence(computes, pull))
        if pull.gain_s <= 0 or is_own(pull, computes):
            pull = None
    candidates = [Candidate("prefill", name, score) for score, _, name, _ in best_p]
    candidates += [Candidate("decode", name, score) for score, _, name, _ in best_d]
    return Placement(
        decode,
        prefill,
        policy.NAME,
        "; ".join(parts),
        tuple(candidates),
        decision.compared,
        pull,
    )
