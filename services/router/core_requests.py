"""A try's way through the tables, from Submit to its one end. Called by `core.py` only.

Credits follow one rule: a try holds its KV on D from placement until D's own `Ended`, or until D
is lost; an abort does not free them, for D may still hold the blocks. On P it holds KV until D has
taken it or the try is over, and P is told (`Abort`) whenever D did not take it.
"""

from __future__ import annotations

from common import prefix
from common.errors import FACES, Code
from common.messages import (
    Abort,
    Cancel,
    DecodeStarted,
    Ended,
    Failed,
    Placed,
    PrefillEnded,
    Refused,
    Submit,
)
from services.router import core_degradation, core_pairs, core_timeline
from services.router.admission import admit, cost
from services.router.admission.admit import Refusal
from services.router.estimators import learning
from services.router.events import Action, Note, Send
from services.router.placement_types import Ask
from services.router.poison import Barred
from services.router.records import Gateway, Key, Try, Worker
from services.router.state import TERMINAL, TryState
from services.router.tables import Tables

REQUEST_ID_CHARS_MAX = 256
BY_DRAIN_RATE = frozenset({Code.QUEUE_FULL, Code.OVERLOADED})


def submit(
    tables: Tables, gateway: Gateway, message: Submit, body: bytes | None, now: float
) -> list[Action]:
    """Queues, refuses, or recognizes a repeated or newer attempt. Placement comes after."""
    key = (message.request_id, message.attempt)
    newest = tables.current.get(message.request_id)
    over = tables.history.latest(message.request_id)
    actions: list[Action] = []
    if newest is not None:
        live = tables.tries[message.request_id, newest]
        if live.gateway != gateway.identity:
            sentence = "another gateway's request with this id is running"
            return [
                _answer_refused(tables, gateway.identity, key, Code.DUPLICATE_REQUEST, sentence)
            ]
        if message.attempt == newest:
            return _repeated(tables, live)
        if message.attempt < newest:
            tables.counts.drop("old attempt")
            return []
        actions += abort(tables, live, "a newer attempt was submitted", now)
    elif key in tables.tries:
        return _repeated(tables, tables.tries[key])
    elif over is not None and not _may_come_again(over, message.attempt):
        tables.counts.drop("old attempt")
        return _answer_over(over, gateway, message.attempt)
    tables.counts.submitted += 1
    each = Try(
        request_id=message.request_id,
        attempt=message.attempt,
        gateway=gateway.identity,
        ask=Ask(
            message.prompt_tokens,
            message.max_tokens,
            message.session,
            message.local_reason,
            tuple(prefix.split(message.prefix_hashes)[: prefix.HASHES_MAX]),
        ),
        body=body or b"",
        received=now,
        key_id=message.key_id,
        tenant=message.tenant,
        priority=message.priority,
        resumable=message.resumable,
        avoid=message.left,
        digest=message.prompt_digest,
        deadline=now + message.deadline_ms / 1000 if message.deadline_ms > 0 else 0.0,
    )
    admit.price(tables, each, message)
    return actions + _admit(tables, each, gateway, now)


def _may_come_again(over: Try, attempt: int) -> bool:
    """The same attempt only if it never reached a worker: its gateway was away while it queued."""
    return attempt > over.attempt or (attempt == over.attempt and over.placement is None)


def _answer_over(over: Try, gateway: Gateway, attempt: int) -> list[Action]:
    """Its gateway asks again for what is over: it did not hear so, and heard no token either."""
    if over.gateway != gateway.identity or over.attempt != attempt:
        return []
    sentence = over.sentence or "the request was lost"
    if over.state is TryState.ENDED:
        sentence = "the request ended, but its tokens were lost on their way"
    return [failed_answer(gateway.identity, over.key, sentence)]


def _repeated(tables: Tables, live: Try) -> list[Action]:
    tables.counts.drop("repeated submit")
    if live.state in (TryState.PLACED, TryState.DECODING):
        return [placed_answer(live)]
    return []


def _admit(tables: Tables, each: Try, gateway: Gateway, now: float) -> list[Action]:
    tables.tries[each.key] = each
    tables.current[each.request_id] = each.attempt
    gateway.tries[each.key] = None
    tables.admission.live[each.priority] += 1
    found = _senseless(tables, each, now) or admit.objection(tables, each, now)
    if found is not None:
        return _refuse(tables, each, found, now)
    tables.waiting.append(each)
    tables.freed = tables.freed or tables.waiting.head() is each
    return []


def _senseless(tables: Tables, each: Try, now: float) -> Refusal | None:
    """Why this request could not be served by an idle fleet either."""
    ask = each.ask
    if not 0 < len(each.request_id) <= REQUEST_ID_CHARS_MAX or each.attempt < 1:
        sentence = "a request needs an id and an attempt from 1 on"
        return Refusal(Code.INVALID_REQUEST, sentence)
    if ask.prompt_tokens < 1 or ask.max_tokens < 1 or not each.body:
        sentence = "a request needs a body, prompt_tokens and max_tokens above 0"
        return Refusal(Code.INVALID_REQUEST, sentence)
    if tables.draining:
        return Refusal(Code.DRAINING, "the router is stopping")
    barred = tables.poison.barred(each.digest, now)
    if barred is not None:
        barred.refused += 1
        return Refusal(Code.REQUEST_QUARANTINED, quarantined(barred))
    if not tables.can_ever_hold(ask):
        return Refusal(Code.CONTEXT_LENGTH_EXCEEDED, never_fits(ask))
    if lacks_decode(tables, now):
        waited = tables.admission.config.no_decode_wait_ms / 1000
        return Refusal(Code.NO_CAPACITY, f"no decode worker was ready in {waited:g} s")
    return None


def quarantined(barred: Barred) -> str:
    deaths = len(barred.workers)
    return (
        f"{deaths} workers died with this prompt (request {barred.request_id}); it is quarantined"
    )


def never_fits(ask: Ask) -> str:
    return (
        f"{ask.prompt_tokens} prompt tokens and {ask.max_tokens} to generate are more than any "
        "decode worker can hold"
    )


def lacks_decode(tables: Tables, now: float) -> bool:
    """No decode worker is ready, and waiting for one has gone on long enough."""
    since = tables.without_decode_since
    patience = tables.admission.config.no_decode_wait_ms / 1000
    return since is not None and now - since > patience


def refuse(tables: Tables, each: Try, code: Code, sentence: str, now: float) -> list[Action]:
    """A queued try that nothing was placed of is over."""
    return _refuse(tables, each, Refusal(code, sentence), now)


def _refuse(tables: Tables, each: Try, refusal: Refusal, now: float) -> list[Action]:
    code, sentence = refusal.code, refusal.sentence
    retry = _retry_after_ms(tables, each, refusal, now)
    answer = _answer_refused(tables, each.gateway, each.key, code, sentence, retry)
    leave(tables, each, TryState.REFUSED, code, sentence, now)
    fields: dict[str, object] = {"request_id": each.request_id, "code": code.value}
    return [answer, Note("debug", "request.refused", sentence, fields)]


def _retry_after_ms(tables: Tables, each: Try, refusal: Refusal, now: float) -> int:
    """On every refusal that a later try may pass."""
    if not FACES[refusal.code].retryable:
        return 0
    if refusal.retry_after is None and refusal.code not in BY_DRAIN_RATE:
        config = tables.admission.config
        late = refusal.code is Code.NO_CAPACITY
        wait = config.no_decode_wait_ms if late else config.retry_after_min_ms
        refusal = refusal._replace(retry_after=wait / 1000)
    return admit.retry_after_ms(tables, each, refusal, now)


def _answer_refused(
    tables: Tables, gateway: str, key: Key, code: Code, sentence: str, retry_after_ms: int = 0
) -> Send:
    tables.counts.refuse(code.value)
    refused = Refused(
        code=code,
        message=sentence,
        request_id=key[0],
        attempt=key[1],
        retry_after_ms=retry_after_ms,
    )
    return Send(gateway, refused)


def placed_answer(each: Try) -> Send:
    assert each.placement is not None
    decode, prefill = each.placement.decode, each.placement.prefill
    return Send(
        each.gateway,
        Placed(
            request_id=each.request_id,
            attempt=each.attempt,
            decode=decode.name,
            decode_incarnation=decode.incarnation,
            prefill=prefill.name if prefill else "",
        ),
    )


def cancel(tables: Tables, gateway: Gateway, message: Cancel, now: float) -> list[Action]:
    each = tables.tries.get((message.request_id, message.attempt))
    if each is None or each.gateway != gateway.identity:
        tables.counts.drop("unknown cancel")
        return []
    return abort(tables, each, message.reason, now)


def abort(tables: Tables, each: Try, reason: str, now: float) -> list[Action]:
    """Its gateway wants no more of it. Idempotent."""
    if each.state is TryState.QUEUED:
        leave(tables, each, TryState.CANCELLED, Code.CANCELLED, reason, now)
        return []
    if each.state is TryState.ABORTING:
        return []
    each.move(TryState.ABORTING)
    each.sentence = reason
    return [_abort(each.decode, each.key, reason), *close_prefill(tables, each, reason)]


def close_prefill(tables: Tables, each: Try, reason: str) -> list[Action]:
    """P need hold nothing for it any more, and hears so. Idempotent."""
    if not each.prefill_open:
        return []
    _release_prefill(tables, each)
    return [_abort(each.prefill, each.key, reason)]


def _release_prefill(tables: Tables, each: Try) -> None:
    if each.prefill_open:
        worker = tables.workers[each.prefill]
        worker.computed(each.key)
        worker.release(each.key)
        each.prefill_open = False
        tables.freed |= tables.wants_prefill


def _abort(peer: str, key: Key, reason: str) -> Send:
    return Send(peer, Abort(request_id=key[0], attempt=key[1], reason=reason))


def prefill_ended(
    tables: Tables, worker: Worker, message: PrefillEnded, now: float
) -> list[Action]:
    each = tables.tries.get((message.request_id, message.attempt))
    if each is None or each.prefill != worker.identity or each.prefill_report is not None:
        tables.counts.drop("stale prefill report")
        return []
    each.prefill_report, each.prefill_ended = message, now
    if message.error:
        each.prefill_problem = f"{worker.name} failed: {message.message or message.error}"
    learning.computed(tables.estimates, worker, each, now)
    worker.computed(each.key)
    tables.freed |= tables.wants_prefill
    if message.error or each.decode_report is not None:
        _release_prefill(tables, each)
    elif each.state is TryState.PLACED:
        tables.admission.handed[each.key] = now
    return []


def decode_started(
    tables: Tables, worker: Worker, message: DecodeStarted, now: float
) -> list[Action]:
    each = tables.tries.get((message.request_id, message.attempt))
    if each is None or each.decode != worker.identity or each.decode_report is not None:
        tables.counts.drop("stale decode report")
        return []
    each.decode_report, each.decode_started = message, now
    worker.decodes(each.key)
    tables.admission.handed.pop(each.key, None)
    each.batch = len(worker.decoding)
    learning.started(tables.estimates, worker, each, now)
    worker.computed(each.key)
    if each.state is TryState.PLACED:
        each.move(TryState.DECODING)
    core_degradation.started(tables, each, worker, message, now)
    actions = core_pairs.started(tables, each, message, now)
    if message.kv is None or not message.kv.complete:
        return actions + close_prefill(tables, each, "decode did without this KV")
    if each.prefill_report is not None:
        _release_prefill(tables, each)
    return actions


def ended(tables: Tables, worker: Worker, message: Ended, now: float) -> list[Action]:
    each = tables.tries.get((message.request_id, message.attempt))
    if each is None or each.decode != worker.identity:
        tables.counts.drop("stale end")
        return []
    each.end_report = message
    learning.ended(tables.estimates, worker, each, now)
    actions = close_prefill(tables, each, "the request is over")
    if each.state is TryState.ABORTING or message.error == Code.CANCELLED:
        state = TryState.CANCELLED
    else:
        state = TryState.FAILED if message.error else TryState.ENDED
    sentence = each.sentence or message.message
    declined = state is TryState.FAILED and message.error == Code.NO_CAPACITY
    leave(tables, each, state, message.error or message.finish_reason, sentence, now)
    if declined:
        actions.append(failed_answer(each.gateway, each.key, sentence, Code.NO_CAPACITY))
    return actions


def fail(tables: Tables, each: Try, sentence: str, now: float) -> list[Action]:
    """D is lost to it: the gateway hears `Failed`, P is released."""
    actions = close_prefill(tables, each, "decode worker lost")
    if each.state is TryState.ABORTING:
        leave(tables, each, TryState.CANCELLED, Code.CANCELLED, each.sentence, now)
        return actions
    leave(tables, each, TryState.FAILED, Code.WORKER_LOST, sentence, now)
    tables.gateways[each.gateway].lost.append(each.key)
    return [failed_answer(each.gateway, each.key, sentence), *actions]


def failed_answer(gateway: str, key: Key, sentence: str, code: Code = Code.WORKER_LOST) -> Send:
    return Send(gateway, Failed(request_id=key[0], attempt=key[1], code=code, message=sentence))


def prefill_lost(tables: Tables, each: Try, sentence: str) -> None:
    """D's load will fail, and D computes the prompt itself; the router only takes note."""
    each.prefill_problem = sentence
    _release_prefill(tables, each)


def leave(
    tables: Tables, each: Try, state: TryState, outcome: str, sentence: str, now: float
) -> None:
    """The one way out of the tables."""
    was = each.state
    each.move(state)
    assert state in TERMINAL
    each.finished, each.outcome, each.sentence = now, str(outcome), sentence
    if was is TryState.QUEUED:
        if each.key in tables.waiting:
            tables.waiting.remove(each)
        each.body = b""
        each.forget_prefix()
    else:
        tables.active -= 1
        tables.workers[each.decode].release(each.key)
        tables.drain_rate.ended(now)
        core_pairs.over(tables, each, now)
    _settle(tables, each, served=was is not TryState.QUEUED)
    del tables.tries[each.key]
    if tables.current.get(each.request_id) == each.attempt:
        del tables.current[each.request_id]
    tables.gateways[each.gateway].tries.pop(each.key, None)
    tables.freed = True
    _count(tables, state)
    (tables.refusals if state is TryState.REFUSED else tables.history).add(each)
    core_timeline.over(tables, each, now)


def _settle(tables: Tables, each: Try, *, served: bool) -> None:
    """What it really cost, to its key and its tenant; nothing if it was never placed."""
    state = tables.admission
    state.live[each.priority] -= 1
    state.handed.pop(each.key, None)
    more = (cost.actual(each, state.config.output_cost) if served else 0.0) - each.cost
    if served:
        tables.waiting.settle(each, more)
    if each.key in state.charged:
        state.charged.remove(each.key)
        state.keys.ended(each.key_id, more)


def _count(tables: Tables, state: TryState) -> None:
    counts = tables.counts
    if state is TryState.ENDED:
        counts.ended += 1
    elif state is TryState.FAILED:
        counts.failed += 1
    elif state is TryState.CANCELLED:
        counts.cancelled += 1
