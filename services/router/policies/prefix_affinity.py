"""Prefix affinity: the worker that already has the KV of most of the prompt, unless it is loaded
beyond the others (`bounded.py`); without such a worker, the least loaded."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.placement_types import Ask, Known, Score, WorkerView
from services.router.policies import least_loaded
from services.router.policies.bounded import decode_limit, prefill_limit

NAME = "prefix_affinity"
HELP = "who has most of the prompt cached, unless loaded beyond the others"


def decode_scores(ask: Ask, known: Known, views: Sequence[WorkerView]) -> list[Score]:
    """(-tokens cached, or 0 beyond the load bound; then as least_loaded)."""
    loads = least_loaded.decode_scores(ask, known, views)
    if not known.cached:
        return [(0, *load) for load in loads]
    limit = decode_limit(views)
    return [
        (-known.cached.get(view.identity, 0) if view.requests <= limit else 0, *load)
        for view, load in zip(views, loads, strict=True)
    ]


def prefill_scores(
    ask: Ask, known: Known, views: Sequence[WorkerView], decode: WorkerView
) -> list[Score]:
    """(-tokens cached, or 0 beyond the load bound; then as least_loaded)."""
    loads = least_loaded.prefill_scores(ask, known, views, decode)
    if not known.cached:
        return [(0, *load) for load in loads]
    limit = prefill_limit(ask, views)
    return [
        (-known.cached.get(view.identity, 0) if view.queued <= limit else 0, *load)
        for view, load in zip(views, loads, strict=True)
    ]


def decode_sentence(ask: Ask, known: Known, view: WorkerView, candidates: int) -> str:
    return _has(ask, known, view) or (
        f"no decode worker that may take more has its prefix; "
        f"{least_loaded.decode_sentence(ask, known, view, candidates)}"
    )


def prefill_sentence(ask: Ask, known: Known, view: WorkerView, candidates: int) -> str:
    return _has(ask, known, view) or (
        f"no prefill worker that may take more has its prefix; "
        f"{least_loaded.prefill_sentence(ask, known, view, candidates)}"
    )


def _has(ask: Ask, known: Known, view: WorkerView) -> str:
    cached = known.cached.get(view.identity, 0)
    if not cached:
        return ""
    return (
        f"{view.name} has {cached} of the {ask.prompt_tokens} prompt tokens cached "
        "and is not loaded beyond the others"
    )
