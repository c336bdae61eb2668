"""Seeds of faults against the router's core, and the mutants that prove the seeds can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from common.messages import Abort
from services.router import core_peers, core_placing, core_requests, placement
from services.router.events import Action, Note, Send
from services.router.records import Key, Try
from services.router.state import TryState
from services.router.tables import Tables
from services.router.waiting import Waiting
from tests.simulation.router_world import PromiseBrokenError, World, mutant

SEEDS = 150
MUTANT_SEEDS = 60


@pytest.mark.parametrize("block", range(10))
@pytest.mark.timeout(120)
def test_every_promise_holds_under_every_seed(block: int) -> None:
    each = SEEDS // 10
    for seed in range(block * each, (block + 1) * each):
        world = World(seed)
        try:
            world.run()
        except PromiseBrokenError as violation:
            raise PromiseBrokenError(f"seed {seed}: {violation}") from violation


def test_a_seed_replays_to_the_same_trace() -> None:
    first, again, other = World(7), World(7), World(8)
    assert first.run() == again.run() != other.run()
    assert first.events == again.events > 1000


def test_the_worlds_do_real_work() -> None:
    """Guards against a simulation in which nothing happens."""
    worlds = [World(seed) for seed in range(10)]
    for world in worlds:
        world.run()
    counts = [world.core.tables.counts for world in worlds]
    assert sum(c.ended for c in counts) > 500
    for part in ("failed", "cancelled", "placed_local"):
        assert sum(getattr(c, part) for c in counts) > 20, part
    refused = [set(c.refused) for c in counts]
    assert {"queue_full", "deadline_exceeded"} <= set().union(*refused)
    dropped = [set(c.dropped) for c in counts]
    assert {"stale end", "old attempt", "repeated submit"} <= set().union(*dropped)


# ------------------------------------------------------------ mutants


def frees_credits_at_abort(tables: Tables, each: Try, reason: str, now: float) -> list[Action]:
    was = each.state
    actions = ABORT(tables, each, reason, now)
    if was is not TryState.QUEUED and each.key in tables.tries:
        core_requests.leave(tables, each, TryState.CANCELLED, "cancelled", reason, now)
    return actions


def forgets_to_tell_p(tables: Tables, each: Try, reason: str) -> list[Action]:
    return [a for a in CLOSE_PREFILL(tables, each, reason) if not isinstance(a, Send)]


def says_nothing_of_a_loss(gateway: str, key: Key, sentence: str) -> Note:
    return Note("info", "nothing", sentence)


def forgets_orphans(tables: Tables, worker: Any, now: float) -> list[Action]:
    return [a for a in RETURN_WORKER(tables, worker, now) if not _is_abort(a)]


def _is_abort(action: Action) -> bool:
    return isinstance(action, Send) and isinstance(action.message, Abort)


def ignores_kv(ask: Any, view: Any) -> bool:
    return bool(view.requests < view.requests_max)


def forgets_p_of_a_lost_d(tables: Tables, each: Try, sentence: str, now: float) -> list[Action]:
    if each.state is TryState.ABORTING:
        return FAIL(tables, each, sentence, now)
    core_requests.leave(tables, each, TryState.FAILED, "worker_lost", sentence, now)
    return [core_requests.failed_answer(each.gateway, each.key, sentence)]


def keeps_the_queue_waiting(tables: Tables, now: float) -> list[Action]:
    return [] if tables.active else PUMP(tables, now)


def aborts_only_p(tables: Tables, each: Try, reason: str, now: float) -> list[Action]:
    decode = each.decode
    actions = ABORT(tables, each, reason, now)
    return [a for a in actions if not (isinstance(a, Send) and a.peer == decode)]


ABORT = core_requests.abort
CLOSE_PREFILL = core_requests.close_prefill
RETURN_WORKER = core_peers._return_worker
FAIL = core_requests.fail
PUMP = core_placing.pump

MUTANTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "credits freed at abort": (core_requests, "abort", frees_credits_at_abort),
    "P not told": (core_requests, "close_prefill", forgets_to_tell_p),
    "P of a lost D forgotten": (core_requests, "fail", forgets_p_of_a_lost_d),
    "gateway not told": (core_requests, "failed_answer", says_nothing_of_a_loss),
    "orphans not aborted": (core_peers, "_return_worker", forgets_orphans),
    "KV not counted": (placement, "_decode_has_room", ignores_kv),
    "queue without a bound": (Waiting, "has_room", lambda self, size: True),
    "ended attempts placed again": (core_requests, "_may_come_again", lambda over, attempt: True),
    "queue served only when idle": (core_placing, "pump", keeps_the_queue_waiting),
    "abort not sent to D": (core_requests, "abort", aborts_only_p),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.timeout(120)
def test_each_mutant_is_killed(name: str) -> None:
    target, attribute, replacement = MUTANTS[name]
    with mutant(target, attribute, replacement):
        for seed in range(MUTANT_SEEDS):
            try:
                World(seed).run()
            except (PromiseBrokenError, AssertionError, KeyError):
                return
    raise AssertionError(f"{MUTANT_SEEDS} seeds did not notice: {name}")
