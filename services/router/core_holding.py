"""What workers and gateways say they hold, against what the tables say. Called by `core.py` only.

State is soft: a restarted router knows nothing, one of two knows only what it placed itself.
Workers say what they hold after every Welcome, and at once what another router gives them. What is
not known here is adopted: it holds its credits and ends by the worker's reports like any other, but
its owner is elsewhere or was an earlier router, so that it is never aborted merely because this
router lost sight of somebody. What is known here and not held there is over, its end was lost with
a connection; only what was placed before the peer's Hello can be judged so, the rest may be under
way to it.
"""

from __future__ import annotations

from common.messages import Abort, Held, Holding, Live, Role, Took
from services.router import core_requests
from services.router.events import Action, Note, Send
from services.router.placement_types import Ask, Placement
from services.router.records import Gateway, Key, Try, Worker
from services.router.state import TryState
from services.router.tables import Tables

POLICY = "adopted"
GATEWAYS_MAX = 4_096


def holding(tables: Tables, worker: Worker, message: Holding, now: float) -> list[Action]:
    listed = {(held.request_id, held.attempt): held for held in message.tries}
    unconfirmed, worker.unconfirmed = worker.unconfirmed, {}
    actions: list[Action] = []
    if message.complete:
        for key in unconfirmed:
            if key in worker.held and key not in listed:
                actions += _not_held(tables, worker, key, now)
    before = tables.counts.adopted
    for held in listed.values():
        actions += _adopt(tables, worker, held, now)
    adopted = tables.counts.adopted - before
    if adopted:
        sentence = f"{worker.name} holds {adopted} requests that this router did not place"
        actions.append(Note("info", "requests.adopted", sentence))
    return actions


def took(tables: Tables, worker: Worker, message: Took, now: float) -> list[Action]:
    return _adopt(tables, worker, message.held, now)


def live(tables: Tables, gateway: Gateway, message: Live, now: float) -> list[Action]:
    """What its gateway no longer wants is aborted; its Cancel was lost with a connection."""
    wanted = set(message.tries)
    unconfirmed, gateway.unconfirmed = gateway.unconfirmed, {}
    actions: list[Action] = []
    for key in unconfirmed:
        each = tables.tries.get(key)
        if message.complete and each is not None and key not in wanted:
            actions += core_requests.abort(tables, each, "its gateway no longer wants it", now)
    return actions


def _not_held(tables: Tables, worker: Worker, key: Key, now: float) -> list[Action]:
    each = tables.tries[key]
    sentence = f"{worker.name} does not hold the request, and its end was not heard"
    if worker.role is Role.PREFILL:
        core_requests.prefill_lost(tables, each, sentence)
        return []
    return core_requests.fail(tables, each, sentence, now)


def _adopt(tables: Tables, worker: Worker, held: Held, now: float) -> list[Action]:
    key = (held.request_id, held.attempt)
    each = tables.tries.get(key)
    if worker.role is Role.PREFILL:
        if _needs_no_prefill(tables, worker, key):
            return [_abort(worker, key, "it is over, or D needs no more of it")]
        if each is not None:
            _adopt_prefill(each, worker, held)
        return []
    if each is not None and each.state is not TryState.QUEUED:
        if each.decode != worker.identity:
            tables.counts.drop("held twice")
        return []
    if _is_over(tables, worker, key):
        return [_abort(worker, key, "it is over, or a newer attempt took its place")]
    gateway = _gateway(tables, held.gateway, now)
    if gateway is None:
        tables.counts.drop("held for an unknown gateway")
        return []
    queued = each is not None
    if each is None:
        each = _row(tables, gateway, held, now)
    else:
        tables.waiting.remove(each)
        each.body = b""
    _place(tables, each, worker, held, now)
    return [core_requests.placed_answer(each)] if queued else []


def _is_over(tables: Tables, worker: Worker, key: Key) -> bool:
    """Of an adopted one only its owner can say so: this router may merely have lost sight of it."""
    request_id, attempt = key
    if key in worker.orphans or attempt < tables.current.get(request_id, attempt):
        return True
    over = tables.history.latest(request_id)
    if over is None or over.attempt < attempt or over.adopted:
        return False
    if over.attempt == attempt and over.state is TryState.FAILED and not tables.settings.alone:
        return False
    return over.attempt > attempt or over.placement is not None


def _needs_no_prefill(tables: Tables, worker: Worker, key: Key) -> bool:
    """P's Abort was lost with a connection, and its blocks would be held until their lease ends."""
    each = tables.tries.get(key)
    if each is None:
        return _is_over(tables, worker, key)
    begun = each.state in (TryState.DECODING, TryState.ABORTING)
    return begun and not each.prefill_open


def _abort(worker: Worker, key: Key, reason: str) -> Send:
    return Send(worker.identity, Abort(request_id=key[0], attempt=key[1], reason=reason))


def _gateway(tables: Tables, identity: str, now: float) -> Gateway | None:
    """Perhaps one that has yet to say Hello."""
    known = tables.gateways.get(identity)
    if known is not None or identity in tables.fenced:
        return known
    name, _, incarnation = identity.partition("|")
    if not name or not incarnation or len(tables.gateways) >= GATEWAYS_MAX:
        return None
    gateway = Gateway(
        identity=identity,
        name=name,
        incarnation=incarnation,
        stream_endpoint="",
        pid=0,
        last_seen=now,
        since=now,
        gone=True,
        reason="known from its requests only",
    )
    tables.gateways[identity] = gateway
    return gateway


def _row(tables: Tables, gateway: Gateway, held: Held, now: float) -> Try:
    each = Try(
        request_id=held.request_id,
        attempt=held.attempt,
        gateway=gateway.identity,
        ask=Ask(max(1, held.prompt_tokens), max(1, held.max_tokens)),
        body=b"",
        received=now,
        adopted=True,
    )
    tables.tries[each.key] = each
    tables.admission.live[each.priority] += 1
    tables.current[each.request_id] = each.attempt
    gateway.tries[each.key] = None
    return each


def _place(tables: Tables, each: Try, worker: Worker, held: Held, now: float) -> None:
    """As a placement, with the credits that go with it."""
    each.adopted = True
    each.move(TryState.PLACED)
    each.placed, each.waits_for = now, None
    sentence = f"{worker.name} was found holding it"
    each.placement = Placement(worker.view(), None, POLICY, sentence, ())
    worker.hold(each.key, worker.view().kv_need(each.ask.total_tokens))
    tables.active += 1
    tables.counts.adopted += 1
    if held.started:
        each.move(TryState.DECODING)
        worker.decodes(each.key)
        return
    if not held.prefill:
        worker.queue(each.key, each.ask.prompt_tokens)
    prefill = tables.workers.get(held.prefill)
    if prefill is not None and prefill.role is Role.PREFILL and not prefill.away:
        _adopt_prefill(each, prefill, held)


def _adopt_prefill(each: Try, worker: Worker, held: Held) -> None:
    """P's part of an adopted try whose D has not begun; `held` may be D's word or P's."""
    said_by_p = held.gateway == ""
    if each.prefill == worker.identity and each.prefill_open and said_by_p and held.started:
        worker.computed(each.key)
    if not each.adopted or each.prefill or each.state is not TryState.PLACED:
        return
    if each.placement is None or worker.fingerprint != each.placement.decode.fingerprint:
        return
    view = worker.view()
    each.placement = each.placement._replace(prefill=view)
    each.prefill_open = True
    worker.hold(each.key, view.kv_need(each.ask.prompt_tokens))
    if not (said_by_p and held.started):
        worker.queue(each.key, each.ask.prompt_tokens)
