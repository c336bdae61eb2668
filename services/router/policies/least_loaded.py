"""Least loaded: D with the smallest share of its KV tokens promised, P with the fewest prompt
tokens ahead; then the fewest requests; ties by name."""

from __future__ import annotations

from services.router.placement_types import WorkerView

NAME = "least_loaded"


def decode_score(view: WorkerView) -> tuple[float, ...]:
    """(share of grantable KV tokens in use, requests)."""
    return (view.kv_tokens / view.kv_tokens_max, view.requests)


def prefill_score(view: WorkerView) -> tuple[float, ...]:
    """(prompt tokens not yet computed, requests)."""
    return (view.queued, view.requests)


def decode_sentence(view: WorkerView, candidates: int) -> str:
    share = view.kv_tokens / view.kv_tokens_max
    return (
        f"{view.name} has {share:.0%} of its KV promised and {view.requests} requests, "
        f"the least of {candidates} decode workers with room"
    )


def prefill_sentence(view: WorkerView, candidates: int) -> str:
    return (
        f"{view.name} has {view.queued} prompt tokens ahead, "
        f"the fewest of {candidates} prefill workers with room"
    )
