"""Session affinity: requests of one session go to the same workers, by rendezvous hashing (the
highest hash of session and worker name wins), so that a worker that comes or goes moves only its
own sessions. A worker whose load is above the bound gives way to the next highest hash. A request
without a session goes to the least loaded worker."""

from __future__ import annotations

import xxhash

from services.router.placement.policies import least_loaded
from services.router.placement.policies.bounded import decode_limit, prefill_limit
from services.router.placement.types import PlacementContext, Score, Views, WorkerView

NAME = "session_affinity"
HELP = "the same workers for the same x-session-id, unless loaded beyond the others"


def decode_scores(context: PlacementContext, views: Views) -> list[Score]:
    """(1 beyond the load bound, -hash in 0..1; then as least_loaded)."""
    loads = least_loaded.decode_scores(context, views)
    limit = decode_limit(views)
    return [
        (view.requests > limit, -_weight(context.request.session, view), *load)
        for view, load in zip(views, loads, strict=True)
    ]


def prefill_scores(context: PlacementContext, views: Views, decode: WorkerView) -> list[Score]:
    """(1 beyond the load bound, -hash in 0..1; then as least_loaded)."""
    loads = least_loaded.prefill_scores(context, views, decode)
    limit = prefill_limit(context.request, views)
    return [
        (view.queued > limit, -_weight(context.request.session, view), *load)
        for view, load in zip(views, loads, strict=True)
    ]


def decode_sentence(context: PlacementContext, view: WorkerView, candidates: int) -> str:
    if not context.request.session:
        sentence = least_loaded.decode_sentence(context, view, candidates)
        return f"no session was given; {sentence}"
    return f"its session belongs on {view.name} among {candidates} decode workers with room"


def prefill_sentence(context: PlacementContext, view: WorkerView, candidates: int) -> str:
    if not context.request.session:
        return least_loaded.prefill_sentence(context, view, candidates)
    return f"its session belongs on {view.name} among {candidates} prefill workers with room"


def _weight(session: str, view: WorkerView) -> float:
    if not session:
        return 0.0
    return xxhash.xxh3_64_intdigest(f"{session}\0{view.name}".encode()) / 2**64
