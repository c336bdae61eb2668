"""Bugs to plant: each replaces one function of a production core for the time of a test. Nothing in
the product knows of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from common.blocks import kv_need, whole_blocks
from common.errors import Code
from common.identity import AttemptKey
from common.kv.messages import KvDone
from common.messages import Abort, HandOver, Hello
from common.worker.actions import AbortInEngine, AddToEngine, LeaveEngine, ToRouter
from services.decode.core import DecodeCore
from services.decode.grant_limit import GrantLimit
from services.gateway.requests import recovery
from services.gateway.requests.core import Core as GatewayCore
from services.gateway.requests.lifecycle import Notify, RequestLifecycle
from services.gateway.streams.journal import DeltaOrder, Journal
from services.prefill.core import PrefillCore
from services.router.admission.retry_budget import RetryBudget
from services.router.core import Core
from services.router.events import Action, Note, Send
from services.router.placement import place
from services.router.placement.types import WorkerView
from services.router.records.attempt import Attempt
from services.router.records.states import AttemptEvent, AttemptState
from services.router.records.worker import Worker
from services.router.rules import (
    attempt_lifecycle,
    moves,
    operator,
    place_queue,
    submit,
    worker_membership,
)
from services.router.tables import Tables
from services.router.tables import tables as router_tables

ABORT = attempt_lifecycle.abort
ABORT_PREFILL = attempt_lifecycle.abort_prefill
FAIL = attempt_lifecycle.fail
RETURN_WORKER = worker_membership._return_worker
ENDED = attempt_lifecycle.on_ended
DISPATCH = place_queue._dispatch
DECODE_ABORTED = DecodeCore._aborted
DECODE_DISPATCHED = DecodeCore._dispatched
DECODE_DELTA = DecodeCore._advance
DECODE_KV_DONE = DecodeCore._kv_done
DECODE_GIVES_UP = DecodeCore._give_up
DECODE_LEFT = DecodeCore._left
PREFILL_ABORTED = PrefillCore._aborted
LEAVE = RequestLifecycle.leave
PREFERENCES = moves.preferences
RELEASE = Worker.release


@contextmanager
def planted(target: object, name: str, replacement: object) -> Iterator[None]:
    original = vars(target)[name]
    setattr(target, name, replacement)
    try:
        yield
    finally:
        setattr(target, name, original)


def _is_abort(action: object) -> bool:
    return isinstance(action, Send) and isinstance(action.message, Abort)


def nothing(*args: Any, **more: Any) -> list[Any]:
    return []


# ------------------------------------------------------------ the router


def frees_credits_at_abort(
    tables: Tables, attempt: Attempt, reason: str, now: float
) -> list[Action]:
    was = attempt.state
    actions = ABORT(tables, attempt, reason, now)
    if was is not AttemptState.QUEUED and attempt.key in tables.attempts:
        attempt_lifecycle.finish(tables, attempt, AttemptEvent.CANCELLED, "cancelled", reason, now)
    return actions


def aborts_only_p(tables: Tables, attempt: Attempt, reason: str, now: float) -> list[Action]:
    decode = attempt.decode
    actions = ABORT(tables, attempt, reason, now)
    return [a for a in actions if not (isinstance(a, Send) and a.peer == decode)]


def forgets_to_tell_p(tables: Tables, attempt: Attempt, reason: str) -> list[Action]:
    return [a for a in ABORT_PREFILL(tables, attempt, reason) if not isinstance(a, Send)]


def forgets_p_of_a_lost_d(
    tables: Tables, attempt: Attempt, sentence: str, now: float
) -> list[Action]:
    if attempt.state is AttemptState.ABORTING:
        return FAIL(tables, attempt, sentence, now)
    attempt_lifecycle.finish(tables, attempt, AttemptEvent.FAILED, "worker_lost", sentence, now)
    return [attempt_lifecycle.failed_message(attempt.gateway, attempt.key, sentence)]


def says_nothing_of_a_loss(gateway: str, key: AttemptKey, sentence: str, code: str = "") -> Note:
    return Note("info", "nothing", sentence)


def forgets_orphans(worker: Worker, now: float) -> list[Action]:
    return [a for a in RETURN_WORKER(worker, now) if not _is_abort(a)]


def fences_nobody(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    return []


def keeps_credits_of_failed(tables: Tables, worker: Worker, message: Any, now: float) -> Any:
    return [] if message.error else ENDED(tables, worker, message, now)


def dispatches_twice(
    tables: Tables, attempt: Attempt, choice: Any, now: float, source: Worker | None = None
) -> list[Action]:
    actions = DISPATCH(tables, attempt, choice, now, source)
    decodes = [a for a in actions if isinstance(a, Send) and a.peer == choice.decode.identity]
    return [*actions, *decodes]


def counts_tokens(of: Any, tokens: int, **more: Any) -> int:
    return whole_blocks(tokens, of.block_tokens)


def counts_prompt_as_decoded(tokens: int, block_tokens: int, groups: Any, **more: Any) -> int:
    return kv_need(tokens, block_tokens, groups)


def counts_one_group(tokens: int, block_tokens: int, groups: Any, **more: Any) -> int:
    return kv_need(tokens, block_tokens, groups[:1], **more)


def releases_tokens(worker: Worker, key: AttemptKey) -> None:
    """Of an engine with groups, what the tokens alone would have needed."""
    held = worker.held.get(key, 0)
    RELEASE(worker, key)
    if len(worker.capacity.kv_groups) > 1:
        worker.held_tokens += held // len(worker.capacity.kv_groups)


# ------------------------------------------------------------ moves


def goes_anywhere(attempt: Attempt, decodes: list[WorkerView], source: Any) -> Iterator[Any]:
    yield [view for view in decodes if view.identity != attempt.moved_from] or decodes


def goes_by_name(attempt: Attempt, decodes: list[WorkerView], source: Any) -> Iterator[Any]:
    """And by cost, where the order names no worker."""
    order = attempt.came_by
    unnamed = replace(order, copy_to="") if order is not None else None
    yield from PREFERENCES(replace(attempt, came_by=unnamed), decodes, source)


def goes_back_first(attempt: Attempt, decodes: list[WorkerView], source: Any) -> Iterator[Any]:
    yield [view for view in decodes if view.identity == attempt.moved_from]
    yield decodes


def leaves_for_full_workers(tables: Tables, attempt: Attempt, source: Worker) -> list[WorkerView]:
    return [view for view in tables.snapshots.decodes() if view.identity != source.identity]


def tells_nobody(attempt: Attempt, order: Any, now: float) -> list[Action]:
    order.told = now
    return []


def hands_nothing_over(
    tables: Tables, attempt: Attempt, choice: Any, now: float, source: Worker | None = None
) -> list[Action]:
    actions = DISPATCH(tables, attempt, choice, now, source)
    orders = [a for a in actions if isinstance(a, Send) and isinstance(a.message, HandOver)]
    return [action for action in actions if action not in orders]


def hands_over_the_wrong_attempt(
    tables: Tables, attempt: Attempt, choice: Any, now: float, source: Worker | None = None
) -> list[Action]:
    actions = DISPATCH(tables, attempt, choice, now, source)
    for action in actions:
        if isinstance(action, Send) and isinstance(action.message, HandOver):
            wrong = msgspec.structs.replace(action.message, kept_attempt=attempt.number)
            action.message = wrong
    return actions


def drops_all_that_is_evicted(tables: Tables, worker: Worker) -> dict[AttemptKey, str]:
    return dict.fromkeys(worker.held, "it is evicted")


def gives_up_with_another_error(
    core: DecodeCore, key: str, code: str, reason: str, now: float
) -> list[Any]:
    return DECODE_GIVES_UP(core, key, Code.CANCELLED, reason, now)


def keeps_nothing(core: DecodeCore, *args: Any) -> list[Any]:
    actions = DECODE_GIVES_UP(core, *args)
    stream = core._streams.get(args[0])
    if stream is None or stream.leaves is None:
        return actions
    aborted = AbortInEngine(stream.request_id, stream.attempt)
    return [aborted, *core._refused(stream.leaves, args[-1])]


# ------------------------------------------------------------ the gateway


def takes_any_index(journal: Journal, attempt: int, index: int, token_ids: list[int]) -> DeltaOrder:
    journal.emitted += token_ids
    return DeltaOrder.NEXT


def forgets_what_was_emitted(journal: Journal) -> int:
    journal.attempt += 1
    return journal.attempt


def leaves_without_a_word(
    lifecycle: RequestLifecycle, request: Any, state: Any, reason: str, _notify: Any, now: float
) -> Any:
    return LEAVE(lifecycle, request, state, reason, Notify.NOBODY, now)


# ------------------------------------------------------------ the workers


def ends_without_a_word(core: DecodeCore, event: Abort, now: float) -> list[Any]:
    return [a for a in DECODE_ABORTED(core, event, now) if not isinstance(a, ToRouter)]


def lets_the_engine_go_on(core: DecodeCore, event: Abort, now: float) -> list[Any]:
    return [a for a in DECODE_ABORTED(core, event, now) if not isinstance(a, AbortInEngine)]


def counts_no_tokens(core: DecodeCore, stream: Any, output: Any, now: float) -> Any:
    before = stream.emitted
    reports = DECODE_DELTA(core, stream, output, now)
    stream.emitted = before
    return reports


def drops_work(core: DecodeCore, event: Any, message: Any, now: float) -> list[Any]:
    actions = DECODE_DISPATCHED(core, event, message, now)
    lost = hash_of(message.request_id) % 16 == 0
    return [a for a in actions if not (lost and isinstance(a, AddToEngine))]


def hash_of(text: str) -> int:
    return sum(text.encode())


def keeps_kv_on_abort(core: PrefillCore, event: Abort) -> list[Any]:
    return [a for a in PREFILL_ABORTED(core, event) if not isinstance(a, AbortInEngine)]


def forgets_that_kept_kv_was_freed(core: DecodeCore, done: KvDone, now: float) -> list[Any]:
    return [] if done.side == "send" else DECODE_KV_DONE(core, done, now)


def gives_up_without_stopping(core: DecodeCore, *args: Any) -> list[Any]:
    return [a for a in DECODE_GIVES_UP(core, *args) if not isinstance(a, LeaveEngine)]


def does_not_wait_for_the_step(core: DecodeCore, *args: Any) -> list[Any]:
    key, _code, _reason, now = args
    return [*DECODE_GIVES_UP(core, *args), *DECODE_LEFT(core, key, now)]


def hears_nothing_of_those_that_left(_core: DecodeCore, *_args: Any) -> list[Any]:
    return []


Mutant = tuple[object, str, Any]

MUTANTS: dict[str, Mutant] = {
    "router: credits freed at abort": (attempt_lifecycle, "abort", frees_credits_at_abort),
    "router: abort not sent to D": (attempt_lifecycle, "abort", aborts_only_p),
    "router: P not told": (attempt_lifecycle, "abort_prefill", forgets_to_tell_p),
    "router: P of a lost D forgotten": (attempt_lifecycle, "fail", forgets_p_of_a_lost_d),
    "router: gateway not told of a loss": (
        attempt_lifecycle,
        "failed_message",
        says_nothing_of_a_loss,
    ),
    "router: orphans not aborted": (worker_membership, "_return_worker", forgets_orphans),
    "router: older incarnation not fenced": (worker_membership, "_fence_older", fences_nobody),
    "router: replaced worker not told": (worker_membership, "reject_fenced", nothing),
    "router: crash found by silence only": (Core, "peers", nothing),
    "router: KV not counted": (place, "_decodes_with_room", lambda ask, views: list(views)),
    "router: retries without a budget": (RetryBudget, "take", lambda *_: True),
    "router: ended attempts placed again": (
        submit,
        "_may_resubmit",
        lambda o, a: True,
    ),
    "router: what ended unheard is not said": (submit, "_answer_ended", nothing),
    "router: failed ends keep credits": (attempt_lifecycle, "on_ended", keeps_credits_of_failed),
    "router: work given twice": (place_queue, "_dispatch", dispatches_twice),
    "router: groups not counted on D": (WorkerView, "kv_need", counts_tokens),
    "router: steps of a prompt not counted on P": (
        router_tables,
        "kv_need",
        counts_prompt_as_decoded,
    ),
    "router: one group counted on P": (router_tables, "kv_need", counts_one_group),
    "router: groups released in part": (Worker, "release", releases_tokens),
    "router: no end of the queue": (submit, "_refuse_unplaced", nothing),
    "gateway: no end of a silence": (RequestLifecycle, "expire", nothing),
    "gateway: silence not asked about": (GatewayCore, "_ask_again", nothing),
    "gateway: loss of a worker ignored": (GatewayCore, "_worker_lost", nothing),
    "gateway: any index accepted": (Journal, "accept", takes_any_index),
    "gateway: what was emitted is forgotten": (Journal, "next_attempt", forgets_what_was_emitted),
    "gateway: nobody told of a leaver": (RequestLifecycle, "leave", leaves_without_a_word),
    "decode: end of an abort not said": (DecodeCore, "_aborted", ends_without_a_word),
    "decode: engine not told of an abort": (DecodeCore, "_aborted", lets_the_engine_go_on),
    "decode: loss of a gateway ignored": (DecodeCore, "_gateway_gone", nothing),
    "decode: index not counted": (DecodeCore, "_advance", counts_no_tokens),
    "decode: work dropped": (DecodeCore, "_dispatched", drops_work),
    "decode: groups not counted": (GrantLimit, "kv_tokens", counts_tokens),
    "prefill: abort not passed on": (PrefillCore, "_aborted", keeps_kv_on_abort),
    "prefill: handoff not noted": (PrefillCore, "_on_kv_done", nothing),
    "decode: kept KV forgotten": (DecodeCore, "_kv_done", forgets_that_kept_kv_was_freed),
    "decode: goes on after it gave up": (DecodeCore, "_give_up", gives_up_without_stopping),
    "decode: ends before the step does": (DecodeCore, "_give_up", does_not_wait_for_the_step),
    "decode: hears nothing of who left": (DecodeCore, "_left", hears_nothing_of_those_that_left),
    "move: the named worker is not preferred": (moves, "preferences", goes_anywhere),
    "move: back to where it came from": (moves, "preferences", goes_back_first),
    "move: everything may leave": (moves, "why_it_stays", lambda *_: ""),
    "move: room is not looked at": (moves, "takers", leaves_for_full_workers),
    "move: the worker is not told": (moves, "_tell", tells_nobody),
    "move: copying never ends": (moves, "_copy_or_tell", nothing),
    "move: not where its blocks are": (moves, "preferences", goes_by_name),
    "move: the order is forgotten": (submit, "_order_of", lambda *_: None),
    "move: parked where it could move": (moves, "make_room", nothing),
    "move: no pause between two": (moves, "is_recent", lambda *_: False),
    "move: KV not asked for": (moves, "source_of", lambda *_: None),
    "move: KV not handed over": (place_queue, "_dispatch", hands_nothing_over),
    "move: KV of another attempt": (place_queue, "_dispatch", hands_over_the_wrong_attempt),
    "move: an eviction drops all": (operator, "why_dropped", drops_all_that_is_evicted),
    "move: D says cancelled": (DecodeCore, "_give_up", gives_up_with_another_error),
    "move: D keeps nothing": (DecodeCore, "_give_up", keeps_nothing),
    "move: the gateway forgets the KV": (recovery, "KEPT", frozenset()),
}
