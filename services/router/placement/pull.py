"""Whether a worker gets the beginning of a prompt out of a store, or computes it.

All are predicted in seconds: pulling takes a fixed time and that of the bytes at the measured rate
of the two workers, computing the tokens at the worker's rate. What only the disk below a store has
is read first, at the rate of that disk. The worker's own disk takes that alone, and is chosen only
where it is sooner than computing. What the worker has itself in memory is neither pulled nor
computed. The store with the greatest gain is chosen. It may have let the blocks go meanwhile: the
worker asks for them by its own hashes, and computes what it does not get.
"""

from __future__ import annotations

from typing import NamedTuple

from common.messages import KvSource
from services.router.placement.types import PlacementContext, PullChoice, StoredPrefix, WorkerView


class _Terms(NamedTuple):
    """Seconds, of the tokens that a pull would bring."""

    pull_s: float
    compute_s: float
    tokens: int


def best_pull(
    context: PlacementContext, view: WorkerView, *, local: bool = False
) -> PullChoice | None:
    """The store with the greatest gain; None if no store has more of the prompt than the worker has
    in memory. A gain below zero means that computing is sooner. `local`: the worker is a decode
    worker that computes the prompt itself."""
    if not context.stored or not view.pull_blocks:
        return None
    best: PullChoice | None = None
    for stored in context.stored:
        own = stored.identity == view.identity
        paired = (stored.identity, view.identity) not in context.excluded_pairs
        if stored.fingerprint != view.fingerprint or not paired or (own and not stored.on_disk):
            continue
        terms = _terms(context, view, stored, local=local)
        choice = PullChoice(stored, terms.tokens, terms.pull_s, terms.compute_s)
        if not choice.tokens or (own and choice.gain_s <= 0):
            continue
        if best is None or choice.gain_s > best.gain_s:
            best = choice
    return best


def is_own(choice: PullChoice, view: WorkerView) -> bool:
    """Whether it is the worker's own disk, which its engine asks without being told."""
    return choice.stored.identity == view.identity


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
    stored, tokens = choice.stored, choice.tokens
    pull_ms, compute_ms = choice.pull_s * 1000, choice.compute_s * 1000
    if is_own(choice, view):
        return (
            f"{view.name} has {tokens} tokens on its own disk: {pull_ms:.1f} ms, computing them "
            f"{compute_ms:.1f} ms"
        )
    if choice.gain_s <= 0:
        return (
            f"{view.name} computes {tokens} tokens that the {stored.medium} of {stored.name} "
            f"has: {compute_ms:.1f} ms, pulling them {pull_ms:.1f} ms"
        )
    return (
        f"{view.name} pulls {tokens} tokens out of the {stored.medium} of {stored.name}: "
        f"{pull_ms:.1f} ms, computing them {compute_ms:.1f} ms"
    )


def _terms(
    context: PlacementContext, view: WorkerView, stored: StoredPrefix, *, local: bool
) -> _Terms:
    rates, block = context.rates, view.block_tokens
    usable = min(stored.tokens, context.request.prompt_tokens - 1)
    gained = max(0, usable - context.cached.get(view.identity, 0)) // block * block
    in_memory = stored.tokens - stored.on_disk
    read = min(gained, max(0, usable - in_memory))
    read_s = read * view.kv_token_bytes / (stored.disk_bytes_per_s or rates.disk_bytes_per_s)
    rate = rates.local_tokens_per_s if local else rates.prefill_tokens_per_s
    if stored.identity == view.identity:
        return _Terms(read_s, gained / rate, gained)
    pair = rates.pair_bytes_per_s
    bytes_per_s = pair(stored.name, view.name) if pair is not None else rates.kv_bytes_per_s
    pull_s = rates.pull_s + gained * view.kv_token_bytes / bytes_per_s
    return _Terms(read_s + pull_s, gained / rate, gained)
