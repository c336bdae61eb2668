"""Whether a worker gets the beginning of a prompt out of another worker's store, or computes it.

Both are predicted in seconds: pulling takes a fixed time and that of the bytes at the measured rate
of the two workers, computing the tokens at the worker's rate. What the worker has itself is neither
pulled nor computed. The store with the greatest gain is chosen. It may have let the blocks go
meanwhile: the worker asks for them by its own hashes, and computes what it does not get.
"""

from __future__ import annotations

from typing import NamedTuple

from common.messages import KvSource
from services.router.placement.types import PlacementContext, PullChoice, WorkerView


class _Terms(NamedTuple):
    """Seconds, of the tokens that a pull would bring."""

    pull_s: float
    compute_s: float
    tokens: int


def best_pull(
    context: PlacementContext, view: WorkerView, *, local: bool = False
) -> PullChoice | None:
    """The store with the greatest gain; None if no store has more of the prompt than the worker.
    A gain below zero means that computing is sooner. `local`: the worker is a decode worker that
    computes the prompt itself."""
    if not context.stored or not view.pull_blocks:
        return None
    best: PullChoice | None = None
    for stored in context.stored:
        paired = (stored.identity, view.identity) not in context.excluded_pairs
        if stored.identity == view.identity or stored.fingerprint != view.fingerprint or not paired:
            continue
        terms = _terms(context, view, stored.name, stored.tokens, local=local)
        choice = PullChoice(stored, terms.tokens, terms.pull_s, terms.compute_s)
        if choice.tokens and (best is None or choice.gain_s > best.gain_s):
            best = choice
    return best


def source_of(choice: PullChoice | None) -> KvSource | None:
    """For the worker that pulls."""
    if choice is None:
        return None
    stored = choice.stored
    return KvSource(
        name=stored.name,
        incarnation=stored.incarnation,
        fingerprint=stored.fingerprint,
        kv_address=stored.kv_address,
        tokens=stored.tokens,
    )


def pull_sentence(view: WorkerView, choice: PullChoice) -> str:
    if choice.gain_s <= 0:
        return (
            f"{view.name} computes {choice.tokens} tokens that the store of {choice.stored.name} "
            f"has: {choice.compute_s * 1000:.1f} ms, pulling them {choice.pull_s * 1000:.1f} ms"
        )
    return (
        f"{view.name} pulls {choice.tokens} tokens out of the store of {choice.stored.name}: "
        f"{choice.pull_s * 1000:.1f} ms, computing them {choice.compute_s * 1000:.1f} ms"
    )


def _terms(
    context: PlacementContext, view: WorkerView, source: str, tokens: int, *, local: bool
) -> _Terms:
    rates, block = context.rates, view.block_tokens
    usable = min(tokens, context.request.prompt_tokens - 1)
    gained = max(0, usable - context.cached.get(view.identity, 0)) // block * block
    pair = rates.pair_bytes_per_s
    bytes_per_s = pair(source, view.name) if pair is not None else rates.kv_bytes_per_s
    rate = rates.local_tokens_per_s if local else rates.prefill_tokens_per_s
    pull_s = rates.pull_s + gained * view.kv_token_bytes / bytes_per_s
    return _Terms(pull_s, gained / rate, gained)
