"""Bugs to plant: each replaces one function of a production core for the time of a test. Nothing in
the product knows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from common.messages import Abort, Hello
from common.worker.actions import AbortInEngine, AddToEngine, ToRouter
from services.decode.core import DecodeCore
from services.gateway.core import Core as GatewayCore
from services.gateway.events import ToRouter as GatewayToRouter
from services.gateway.requests import Requests
from services.gateway.streams.journal import Journal, Seen
from services.prefill.core import PrefillCore
from services.router import core_peers, core_placing, core_requests, placement
from services.router.admission.retry_budget import RetryBudget
from services.router.core import Core
from services.router.events import Action, Note, Send
from services.router.records import Key, Try, Worker
from services.router.state import TryState
from services.router.tables import Tables

ABORT = core_requests.abort
CLOSE_PREFILL = core_requests.close_prefill
FAIL = core_requests.fail
RETURN_WORKER = core_peers._return_worker
ENDED = core_requests.ended
DISPATCH = core_placing._dispatch
DECODE_ABORTED = DecodeCore._aborted
DECODE_DISPATCHED = DecodeCore._dispatched
DECODE_DELTA = DecodeCore._advance
PREFILL_ABORTED = PrefillCore._aborted
ROUTER_CAME = GatewayCore._router_came
LEAVE = Requests.leave
JOURNAL_PLACE = Journal.place


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


def frees_credits_at_abort(tables: Tables, each: Try, reason: str, now: float) -> list[Action]:
    was = each.state
    actions = ABORT(tables, each, reason, now)
    if was is not TryState.QUEUED and each.key in tables.tries:
        core_requests.leave(tables, each, TryState.CANCELLED, "cancelled", reason, now)
    return actions


def aborts_only_p(tables: Tables, each: Try, reason: str, now: float) -> list[Action]:
    decode = each.decode
    actions = ABORT(tables, each, reason, now)
    return [a for a in actions if not (isinstance(a, Send) and a.peer == decode)]


def forgets_to_tell_p(tables: Tables, each: Try, reason: str) -> list[Action]:
    return [a for a in CLOSE_PREFILL(tables, each, reason) if not isinstance(a, Send)]


def forgets_p_of_a_lost_d(tables: Tables, each: Try, sentence: str, now: float) -> list[Action]:
    if each.state is TryState.ABORTING:
        return FAIL(tables, each, sentence, now)
    core_requests.leave(tables, each, TryState.FAILED, "worker_lost", sentence, now)
    return [core_requests.failed_answer(each.gateway, each.key, sentence)]


def says_nothing_of_a_loss(gateway: str, key: Key, sentence: str) -> Note:
    return Note("info", "nothing", sentence)


def forgets_orphans(tables: Tables, worker: Worker, now: float) -> list[Action]:
    return [a for a in RETURN_WORKER(tables, worker, now) if not _is_abort(a)]


def fences_nobody(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    return []


def keeps_credits_of_failed(tables: Tables, worker: Worker, message: Any, now: float) -> Any:
    return [] if message.error else ENDED(tables, worker, message, now)


def dispatches_twice(tables: Tables, each: Try, choice: Any, now: float) -> list[Action]:
    actions = DISPATCH(tables, each, choice, now)
    decodes = [a for a in actions if isinstance(a, Send) and a.peer == choice.decode.identity]
    return [*actions, *decodes]


# ------------------------------------------------------------ the gateway


def takes_any_index(journal: Journal, attempt: int, index: int, token_ids: list[int]) -> Seen:
    journal.emitted += token_ids
    return Seen.NEXT


def forgets_what_was_said(journal: Journal) -> int:
    journal.attempt += 1
    return journal.attempt


def loses_what_it_held(core: GatewayCore, now: float) -> list[Any]:
    return [a for a in ROUTER_CAME(core, now) if not isinstance(a, GatewayToRouter)]


def leaves_without_a_word(
    requests: Requests, entry: Any, state: Any, reason: str, **told: Any
) -> Any:
    told.update(tell_worker=False, tell_router=False)
    return LEAVE(requests, entry, state, reason, **told)


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


Mutant = tuple[object, str, Callable[..., Any]]

MUTANTS: dict[str, Mutant] = {
    "router: credits freed at abort": (core_requests, "abort", frees_credits_at_abort),
    "router: abort not sent to D": (core_requests, "abort", aborts_only_p),
    "router: P not told": (core_requests, "close_prefill", forgets_to_tell_p),
    "router: P of a lost D forgotten": (core_requests, "fail", forgets_p_of_a_lost_d),
    "router: gateway not told of a loss": (core_requests, "failed_answer", says_nothing_of_a_loss),
    "router: orphans not aborted": (core_peers, "_return_worker", forgets_orphans),
    "router: older incarnation not fenced": (core_peers, "_fence_older", fences_nobody),
    "router: replaced worker not told": (core_peers, "turn_away", nothing),
    "router: crash found by silence only": (Core, "peers", nothing),
    "router: KV not counted": (placement, "_decodes_with_room", lambda ask, views: list(views)),
    "router: retries without a budget": (RetryBudget, "take", lambda self, largest: True),
    "router: ended attempts placed again": (core_requests, "_may_come_again", lambda o, a: True),
    "router: what ended unheard is not said": (core_requests, "_answer_over", nothing),
    "router: failed ends keep credits": (core_requests, "ended", keeps_credits_of_failed),
    "router: work given twice": (core_placing, "_dispatch", dispatches_twice),
    "gateway: silence not asked about": (GatewayCore, "_ask_again", nothing),
    "gateway: loss of a worker ignored": (GatewayCore, "_worker_changed", nothing),
    "gateway: any index accepted": (Journal, "accept", takes_any_index),
    "gateway: what was said is forgotten": (Journal, "next_attempt", forgets_what_was_said),
    "gateway: held requests forgotten": (GatewayCore, "_router_came", loses_what_it_held),
    "gateway: nobody told of a leaver": (Requests, "leave", leaves_without_a_word),
    "decode: end of an abort not said": (DecodeCore, "_aborted", ends_without_a_word),
    "decode: engine not told of an abort": (DecodeCore, "_aborted", lets_the_engine_go_on),
    "decode: loss of a gateway ignored": (DecodeCore, "_gateway_gone", nothing),
    "decode: index not counted": (DecodeCore, "_advance", counts_no_tokens),
    "decode: work dropped": (DecodeCore, "_dispatched", drops_work),
    "prefill: abort not passed on": (PrefillCore, "_aborted", keeps_kv_on_abort),
    "prefill: handoff not noted": (PrefillCore, "_handed", nothing),
}
