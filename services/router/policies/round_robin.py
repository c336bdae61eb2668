"""Round robin: of each role the one that was given nothing for the longest time. Going by whose
turn was last, and not by a position in a list, it stays fair while workers come and go."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.placement_types import Ask, Known, Score, WorkerView

NAME = "round_robin"
HELP = "each in turn, whatever its load"


def decode_scores(_ask: Ask, _known: Known, views: Sequence[WorkerView]) -> list[Score]:
    """(number of the last placement it had part in; 0 = none yet)."""
    return [(view.given,) for view in views]


def prefill_scores(
    _ask: Ask, _known: Known, views: Sequence[WorkerView], _decode: WorkerView
) -> list[Score]:
    """As for decode."""
    return [(view.given,) for view in views]


def decode_sentence(_ask: Ask, _known: Known, view: WorkerView, candidates: int) -> str:
    return f"it is the turn of {view.name} among {candidates} decode workers with room"


def prefill_sentence(_ask: Ask, _known: Known, view: WorkerView, candidates: int) -> str:
    return f"it is the turn of {view.name} among {candidates} prefill workers with room"
