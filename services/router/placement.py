"""Where a request goes: pure, from snapshots to a `Placement` or to what it must wait for.

Filters come first (room now, equal fingerprints), the policy only ranks what is left. D is chosen
before P. A prefill worker takes another prompt while it has less than `PREFILL_AHEAD_TOKENS` ahead:
enough to batch and never to starve, little enough that D's blocks are not held through P's queue,
for the queue's place is the router.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from services.router import governor
from services.router.placement_types import CANDIDATES_MAX, Ask, Candidate, Placement, WaitFor
from services.router.placement_types import WorkerView as View

PREFILL_AHEAD_TOKENS = 16_384

Ranked = list[tuple[tuple[float, ...], str, View]]


class Policy(Protocol):
    """A module in `policies/`. Scores: lower is better; ties go to the lower name."""

    NAME: str

    def decode_score(self, view: View) -> tuple[float, ...]: ...

    def prefill_score(self, view: View) -> tuple[float, ...]: ...

    def decode_sentence(self, view: View, candidates: int) -> str: ...

    def prefill_sentence(self, view: View, candidates: int) -> str: ...


def place(
    ask: Ask, decodes: Sequence[View], prefills: Sequence[View], policy: Policy
) -> Placement | WaitFor:
    """`decodes`, `prefills`: all ready workers."""
    if not decodes:
        return WaitFor.WORKER
    ranked = _rank([v for v in decodes if _decode_has_room(ask, v)], policy.decode_score)
    if not ranked:
        slots = any(view.requests < view.requests_max for view in decodes)
        return WaitFor.KV if slots else WaitFor.SLOT
    tried: set[str] = set()
    for _, _, decode in ranked:
        if decode.fingerprint in tried:
            continue
        tried.add(decode.fingerprint)
        verdict = governor.decide(ask, decode, prefills)
        if not verdict.eligible:
            return _placement(policy, ranked, decode, [], verdict.sentence)
        able = _rank(
            [v for v in verdict.eligible if _prefill_has_room(ask, v)], policy.prefill_score
        )
        if able:
            return _placement(policy, ranked, decode, able, "")
    return WaitFor.PREFILL


def _decode_has_room(ask: Ask, view: View) -> bool:
    total = ask.prompt_tokens + ask.max_tokens
    return (
        view.requests < view.requests_max
        and view.kv_tokens + view.kv_need(total) <= view.kv_tokens_max
        and total <= view.max_model_len
    )


def _prefill_has_room(ask: Ask, view: View) -> bool:
    ahead = view.queued == 0 or view.queued + ask.prompt_tokens <= PREFILL_AHEAD_TOKENS
    fits = view.kv_tokens + view.kv_need(ask.prompt_tokens) <= view.kv_tokens_max
    return ahead and fits and view.requests < view.requests_max


def _rank(views: list[View], score: Callable[[View], tuple[float, ...]]) -> Ranked:
    ranked = [(score(view), view.name, view) for view in views]
    ranked.sort()
    return ranked


def _placement(
    policy: Policy, decodes: Ranked, decode: View, prefills: Ranked, local: str
) -> Placement:
    sentence = policy.decode_sentence(decode, len(decodes))
    prefill = None
    if prefills:
        prefill = prefills[0][2]
        sentence = f"{policy.prefill_sentence(prefill, len(prefills))}; {sentence}"
    else:
        sentence = f"{local}; {sentence}"
    candidates = [Candidate("prefill", name, score) for score, name, _ in prefills[:CANDIDATES_MAX]]
    candidates += [Candidate("decode", name, score) for score, name, _ in decodes[:CANDIDATES_MAX]]
    return Placement(decode, prefill, policy.NAME, sentence, tuple(candidates))
