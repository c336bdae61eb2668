"""Least loaded: the D with the smallest share of its KV tokens promised, the P with the fewest
prompt tokens ahead; of equals, the one with the fewest requests."""

from __future__ import annotations

from services.router.placement.types import PlacementContext, Score, Views, WorkerView

NAME = "least_loaded"
HELP = "decode by KV promised, prefill by prompt tokens ahead"


def decode_scores(_context: PlacementContext, views: Views) -> list[Score]:
    """(share of grantable KV tokens in use, requests)."""
    return [(view.kv_tokens / view.kv_tokens_max, view.requests) for view in views]


def prefill_scores(_context: PlacementContext, views: Views, _decode: WorkerView) -> list[Score]:
    """(prompt tokens not yet computed, requests)."""
    return [(view.queued, view.requests) for view in views]


def decode_sentence(_context: PlacementContext, view: WorkerView, candidates: int) -> str:
    share = view.kv_tokens / view.kv_tokens_max
    return (
        f"{view.name} has {share:.0%} of its KV promised and {view.requests} requests, "
        f"the least of {candidates} decode workers with room"
    )


def prefill_sentence(_context: PlacementContext, view: WorkerView, candidates: int) -> str:
    return (
        f"{view.name} has {view.queued} prompt tokens ahead, "
        f"the fewest of {candidates} prefill workers with room"
    )
