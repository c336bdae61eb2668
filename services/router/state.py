"""The router's two state machines, as tables: a try of a request, and a worker.

A try is one attempt of one request, keyed `(request_id, attempt)`. Its way:

    queued ──▶ placed ──▶ decoding ──▶ ended
       │          └───────────┴──▶ aborting ──▶ cancelled     (credits are held until D says Ended)
       │          └───────────┴──▶ failed | cancelled
       └──▶ refused | cancelled
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from common.errors import BatonError, Code


class TryState(enum.Enum):
    QUEUED = "queued"
    PLACED = "placed"
    DECODING = "decoding"
    ABORTING = "aborting"
    ENDED = "ended"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"


class WorkerState(enum.Enum):
    """`joining`: said Hello, its load is not known yet, or it must prove itself. `suspect`: silent,
    or its engine does not step; gets nothing new. `ejected`: suspect for too long, its requests
    were given up. `draining`: said Leaving. `gone`: its connection closed; may come back."""

    JOINING = "joining"
    READY = "ready"
    SUSPECT = "suspect"
    EJECTED = "ejected"
    DRAINING = "draining"
    GONE = "gone"


_T = TryState
TRY_TRANSITIONS: Mapping[TryState, frozenset[TryState]] = {
    _T.QUEUED: frozenset({_T.PLACED, _T.REFUSED, _T.CANCELLED}),
    _T.PLACED: frozenset({_T.DECODING, _T.ENDED, _T.ABORTING, _T.FAILED, _T.CANCELLED}),
    _T.DECODING: frozenset({_T.ENDED, _T.ABORTING, _T.FAILED, _T.CANCELLED}),
    _T.ABORTING: frozenset({_T.CANCELLED}),
    _T.ENDED: frozenset(),
    _T.FAILED: frozenset(),
    _T.CANCELLED: frozenset(),
    _T.REFUSED: frozenset(),
}
TERMINAL = frozenset({_T.ENDED, _T.FAILED, _T.CANCELLED, _T.REFUSED})
ON_WORKER = frozenset({_T.PLACED, _T.DECODING, _T.ABORTING})

_W = WorkerState
AWAY = frozenset({_W.EJECTED, _W.GONE})
WORKER_TRANSITIONS: Mapping[WorkerState, frozenset[WorkerState]] = {
    _W.JOINING: frozenset({_W.READY, _W.SUSPECT, _W.DRAINING, _W.GONE}),
    _W.READY: frozenset({_W.SUSPECT, _W.DRAINING, _W.GONE}),
    _W.SUSPECT: frozenset({_W.READY, _W.JOINING, _W.EJECTED, _W.DRAINING, _W.GONE}),
    _W.EJECTED: frozenset({_W.JOINING, _W.GONE}),
    _W.DRAINING: frozenset({_W.EJECTED, _W.GONE}),
    _W.GONE: frozenset({_W.JOINING}),
}

S = TypeVar("S", TryState, WorkerState)


class IllegalTransitionError(BatonError):
    """A bug of ours: the process must not go on with it."""

    def __init__(self, what: object, old: enum.Enum, new: enum.Enum) -> None:
        super().__init__(Code.INTERNAL, f"{what} cannot go from {old.value} to {new.value}")


def checked(what: object, table: Mapping[S, frozenset[S]], old: S, new: S) -> S:
    """The new state. `what` names the row. Raises IllegalTransitionError."""
    if new not in table[old]:
        raise IllegalTransitionError(what, old, new)
    return new
