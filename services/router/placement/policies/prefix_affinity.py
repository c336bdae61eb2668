"""Prefix affinity: the worker that has the KV of most of the prompt, unless its load is above the
bound (`bounded.py`); if there is none, the least loaded worker."""

from __future__ import annotations

from services.router.placement.policies import least_loaded
from services.router.placement.policies.bounded import decode_limit, prefill_limit
from services.router.placement.types import PlacementContext, Score, Views, WorkerView

NAME = "prefix_affinity"
HELP = "who has most of the prompt cached, unless loaded beyond the others"


def decode_scores(context: PlacementContext, views: Views) -> list[Score]:
    """(-tokens cached, or 0 beyond the load bound; then as least_loaded)."""
    loads = least_loaded.decode_scores(context, views)
    if not context.cached:
        return [(0, *load) for load in loads]
    limit = decode_limit(views)
    return [
        (-context.cached.get(view.identity, 0) if view.requests <= limit else 0, *load)
        for view, load in zip(views, loads, strict=True)
    ]


def prefill_scores(context: PlacementContext, views: Views, decode: WorkerView) -> list[Score]:
    """(-tokens cached, or 0 beyond the load bound; then as least_loaded)."""
    loads = least_loaded.prefill_scores(context, views, decode)
    if not context.cached:
        return [(0, *load) for load in loads]
    limit = prefill_limit(context.request, views)
    return [
        (-context.cached.get(view.identity, 0) if view.queued <= limit else 0, *load)
        for view, load in zip(views, loads, strict=True)
    ]


def decode_sentence(context: PlacementContext, view: WorkerView, candidates: int) -> str:
    return _prefix_sentence(context, view) or (
        f"no decode worker that may take more has its prefix; "
        f"{least_loaded.decode_sentence(context, view, candidates)}"
    )


def prefill_sentence(context: PlacementContext, view: WorkerView, candidates: int) -> str:
    return _prefix_sentence(context, view) or (
        f"no prefill worker that may take more has its prefix; "
        f"{least_loaded.prefill_sentence(context, view, candidates)}"
    )


def _prefix_sentence(context: PlacementContext, view: WorkerView) -> str:
    cached = context.cached.get(view.identity, 0)
    if not cached:
        return ""
    return (
        f"{view.name} has {cached} of the {context.request.prompt_tokens} prompt tokens cached "
        "and is not loaded beyond the others"
    )
