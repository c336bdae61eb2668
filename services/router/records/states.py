"""The router's two state machines as tables: (state, event) -> state.

An attempt, known as `(request_id, number)`:

    queued ──▶ placed ──▶ decoding ──▶ ended
       │          └───────────┴──▶ aborting ──▶ cancelled
       │          └───────────┴──▶ failed | cancelled
       └──▶ refused | cancelled

An attempt that is being aborted keeps its promises on D until D reports its end or is lost, and is
then cancelled, whatever D reported. What each state means and who holds what in it is in
`docs/states.md`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from common.transitions import IllegalTransitionError


class AttemptState(enum.StrEnum):
    #: It was admitted and waits for a worker.
    QUEUED = "queued"
    #: Its workers were told; it has no token yet.
    PLACED = "placed"
    #: D has made its first token.
    DECODING = "decoding"
    #: It is no longer wanted; D has not confirmed its end yet.
    ABORTING = "aborting"
    #: D made its last token.
    ENDED = "ended"
    #: D reported an error or was lost.
    FAILED = "failed"
    #: It was given up.
    CANCELLED = "cancelled"
    #: It was never placed.
    REFUSED = "refused"


class AttemptEvent(enum.StrEnum):
    #: The router placed it, or found it on a worker.
    PLACED = "placed"
    #: D reported its first token.
    STARTED = "started"
    #: D reported its end.
    ENDED = "ended"
    #: D reported an error, or was lost.
    FAILED = "failed"
    #: Its gateway, an operator or a preemption gives it up; D has to be told if it was placed.
    ABORTED = "aborted"
    #: D reported that it was cancelled.
    CANCELLED = "cancelled"
    #: The router refused it.
    REFUSED = "refused"


class WorkerState(enum.StrEnum):
    #: It said Hello; its load is not known yet, or its probation lasts.
    JOINING = "joining"
    #: It may be given requests.
    READY = "ready"
    #: It is silent or its engine makes no step; it gets nothing new.
    SUSPECT = "suspect"
    #: It was suspect for too long and its requests were given up.
    EJECTED = "ejected"
    #: It said Leaving; it finishes what it has.
    DRAINING = "draining"
    #: Its connection closed; it may return.
    GONE = "gone"


class WorkerEvent(enum.StrEnum):
    #: It has shown its load, and its probation is over.
    CLEARED = "cleared"
    #: It was silent or its engine made no step for too long.
    SUSPECTED = "suspected"
    #: The same for even longer.
    EJECTED = "ejected"
    #: It said Leaving.
    LEAVING = "leaving"
    #: Its connection closed.
    LOST = "lost"
    #: It is back, or trusted again, and has to show its load first.
    REJOINED = "rejoined"


_A, _AE = AttemptState, AttemptEvent
ATTEMPT_TABLE: Mapping[AttemptState, Mapping[AttemptEvent, AttemptState]] = {
    _A.QUEUED: {
        _AE.PLACED: _A.PLACED,
        _AE.REFUSED: _A.REFUSED,
        _AE.ABORTED: _A.CANCELLED,
    },
    _A.PLACED: {
        _AE.STARTED: _A.DECODING,
        _AE.ENDED: _A.ENDED,
        _AE.FAILED: _A.FAILED,
        _AE.ABORTED: _A.ABORTING,
        _AE.CANCELLED: _A.CANCELLED,
    },
    _A.DECODING: {
        _AE.ENDED: _A.ENDED,
        _AE.FAILED: _A.FAILED,
        _AE.ABORTED: _A.ABORTING,
        _AE.CANCELLED: _A.CANCELLED,
    },
    _A.ABORTING: {
        _AE.ENDED: _A.CANCELLED,
        _AE.FAILED: _A.CANCELLED,
        _AE.CANCELLED: _A.CANCELLED,
    },
    _A.ENDED: {},
    _A.FAILED: {},
    _A.CANCELLED: {},
    _A.REFUSED: {},
}
TERMINAL = frozenset({_A.ENDED, _A.FAILED, _A.CANCELLED, _A.REFUSED})
ON_WORKER = frozenset({_A.PLACED, _A.DECODING, _A.ABORTING})

_W, _WE = WorkerState, WorkerEvent
WORKER_TABLE: Mapping[WorkerState, Mapping[WorkerEvent, WorkerState]] = {
    _W.JOINING: {
        _WE.CLEARED: _W.READY,
        _WE.SUSPECTED: _W.SUSPECT,
        _WE.LEAVING: _W.DRAINING,
        _WE.LOST: _W.GONE,
    },
    _W.READY: {
        _WE.SUSPECTED: _W.SUSPECT,
        _WE.LEAVING: _W.DRAINING,
        _WE.LOST: _W.GONE,
    },
    _W.SUSPECT: {
        _WE.CLEARED: _W.READY,
        _WE.REJOINED: _W.JOINING,
        _WE.EJECTED: _W.EJECTED,
        _WE.LEAVING: _W.DRAINING,
        _WE.LOST: _W.GONE,
    },
    _W.EJECTED: {_WE.REJOINED: _W.JOINING, _WE.LOST: _W.GONE},
    _W.DRAINING: {_WE.EJECTED: _W.EJECTED, _WE.LOST: _W.GONE},
    _W.GONE: {_WE.REJOINED: _W.JOINING},
}
AWAY = frozenset({_W.EJECTED, _W.GONE})

S = TypeVar("S", AttemptState, WorkerState)
E = TypeVar("E", AttemptEvent, WorkerEvent)


def next_state(row: object, table: Mapping[S, Mapping[E, S]], state: S, event: E) -> S:
    """The state after `event`. `row` names what changes its state, for the error's sentence. Raises
    IllegalTransitionError."""
    new = table[state].get(event)
    if new is None:
        raise IllegalTransitionError(row, state, event)
    return new
