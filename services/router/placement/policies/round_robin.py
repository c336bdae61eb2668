"""Round robin: of each role, the worker that was placed on the longest time ago. The order follows
the last placement and not a position in a list, so it stays fair while workers come and go."""

from __future__ import annotations

from services.router.placement.types import PlacementContext, Score, Views, WorkerView

NAME = "round_robin"
HELP = "each in turn, whatever its load"


def decode_scores(_context: PlacementContext, views: Views) -> list[Score]:
    """(serial number of the last placement on it; 0 = none yet)."""
    return [(view.last_placed_serial,) for view in views]


def prefill_scores(_context: PlacementContext, views: Views, _decode: WorkerView) -> list[Score]:
    """As `decode_scores`."""
    return [(view.last_placed_serial,) for view in views]


def decode_sentence(_context: PlacementContext, view: WorkerView, candidates: int) -> str:
    return f"it is the turn of {view.name} among {candidates} decode workers with room"


def prefill_sentence(_context: PlacementContext, view: WorkerView, candidates: int) -> str:
    return f"it is the turn of {view.name} among {candidates} prefill workers with room"
