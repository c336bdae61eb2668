"""Session affinity: requests of one session go to the same workers, by rendezvous hashing (the
highest hash of session and worker name wins), so that a worker that comes or goes moves only its
own sessions. A worker loaded beyond the others is passed over for the next highest; without a
session, the least loaded is taken."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from services.router.placement_types import Ask, Known, Score, WorkerView
from services.router.policies import least_loaded
from services.router.policies.bounded import decode_limit, prefill_limit

NAME = "session_affinity"
HELP = "the same workers for the same x-session-id, unless loaded beyond the others"


def decode_scores(ask: Ask, known: Known, views: Sequence[WorkerView]) -> list[Score]:
    """(1 beyond the load bound, -hash in 0..1; then as least_loaded)."""
    loads = least_loaded.decode_scores(ask, known, views)
    limit = decode_limit(views)
    return [
        (view.requests > limit, -_weight(ask.session, view), *load)
        for view, load in zip(views, loads, strict=True)
    ]


def prefill_scores(
    ask: Ask, known: Known, views: Sequence[WorkerView], decode: WorkerView
) -> list[Score]:
    """(1 beyond the load bound, -hash in 0..1; then as least_loaded)."""
    loads = least_loaded.prefill_scores(ask, known, views, decode)
    limit = prefill_limit(ask, views)
    return [
        (view.queued > limit, -_weight(ask.session, view), *load)
        for view, load in zip(views, loads, strict=True)
    ]


def decode_sentence(ask: Ask, known: Known, view: WorkerView, candidates: int) -> str:
    if not ask.session:
        sentence = least_loaded.decode_sentence(ask, known, view, candidates)
        return f"no session was given; {sentence}"
    return f"its session belongs on {view.name} among {candidates} decode workers with room"


def prefill_sentence(ask: Ask, known: Known, view: WorkerView, candidates: int) -> str:
    if not ask.session:
        return least_loaded.prefill_sentence(ask, known, view, candidates)
    return f"its session belongs on {view.name} among {candidates} prefill workers with room"


def _weight(session: str, view: WorkerView) -> float:
    if not session:
        return 0.0
    return xxhash.xxh3_64_intdigest(f"{session}\0{view.name}".encode()) / 2**64
