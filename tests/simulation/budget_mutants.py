"""Bugs of KV budgets, moves and parks to plant in worlds where requests have budgets; see
`mutants.py`."""

from __future__ import annotations

from typing import Any

from common.messages import Abort, GrantKv
from common.worker.actions import AbortInEngine
from services.decode import budget
from services.decode.core import DecodeCore
from services.router.events import Action, Send
from services.router.placement.types import WorkerView
from services.router.records.attempt import Attempt
from services.router.rules import moves, place_queue, preempt, submit
from services.router.tables import Tables
from tests.simulation.mutants import Mutant, hands_nothing_over, nothing

PARK = preempt._park
GRANTED = preempt._granted
REGRANT = budget.regrant
DECODE_ABORTED = DecodeCore._aborted
DECODE_GIVES_UP = DecodeCore._give_up


def parks_without_a_word(*args: Any) -> list[Action]:
    return [a for a in PARK(*args) if not isinstance(a, Send)]


def parks_and_aborts(tables: Tables, attempt: Attempt, *args: Any) -> list[Action]:
    """Its gateway hears nothing of the end."""
    PARK(tables, attempt, *args)
    request_id, number = attempt.key
    return [Send(attempt.decode, Abort(request_id=request_id, attempt=number, reason="parked"))]


def grants_what_it_has(tables: Tables, attempt: Attempt, step: Any) -> list[Action]:
    attempt.grants += 1
    return [preempt._grant(attempt)]


def grants_without_a_word(*args: Any) -> list[Action]:
    GRANTED(*args)
    return []


def has_always_room(view: WorkerView, *args: Any) -> bool:
    return True


def goes_where_no_room_is(tables: Tables, attempt: Attempt, worker: Any, step: Any) -> Any:
    views = tables.snapshots.decodes()
    return next((view for view in views if view.identity != worker.identity), None)


def counts_nothing_new(stream: Any, order: GrantKv, *args: Any) -> Any:
    before = stream.kv_tokens
    after = REGRANT(stream, order, *args)
    stream.kv_tokens = before
    return after


def keeps_what_nobody_takes(core: DecodeCore, event: Abort, now: float) -> list[Any]:
    actions = DECODE_ABORTED(core, event, now)
    kept = len(actions) == 1 and isinstance(actions[0], AbortInEngine)
    return [] if kept else actions


def regrants_the_table_only(tables: Tables, attempt: Attempt, kv_tokens: int) -> None:
    attempt.request = attempt.request._replace(kv_tokens=kv_tokens)


MUTANTS: dict[str, Mutant] = {
    "park: the worker is not told": (preempt, "_park", parks_without_a_word),
    "park: the stream is aborted": (preempt, "_park", parks_and_aborts),
    "park: what is kept is never let go": (preempt, "end_grace", nothing),
    "park: D keeps what nobody takes": (DecodeCore, "_aborted", keeps_what_nobody_takes),
    "park: a higher class waits in vain": (preempt, "_outranked", lambda *_: False),
    "park: the order is forgotten": (submit, "_order_of", lambda *_: None),
    "budget: nobody decides": (preempt, "on_reached", nothing),
    "budget: nobody is told": (budget, "told", nothing),
    "budget: the promise is not raised": (preempt, "_granted", grants_what_it_has),
    "budget: the grant is not sent": (preempt, "_granted", grants_without_a_word),
    "budget: D ignores the grant": (DecodeCore, "_granted", nothing),
    "budget: D does not count the grant": (budget, "regrant", counts_nothing_new),
    "budget: the worker's promise is not raised": (Tables, "regrant", regrants_the_table_only),
    "budget: room here is not looked at": (preempt, "_has_room_here", has_always_room),
    "budget: room there is not looked at": (preempt, "_roomiest", goes_where_no_room_is),
    "budget: at the end it does not leave": (moves, "leave_now", nothing),
    "budget: KV not handed over": (place_queue, "_dispatch", hands_nothing_over),
}
