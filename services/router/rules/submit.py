"""The arrival of a request: an attempt is recognized, checked, and queued or refused.

A gateway submits again whenever it is not sure that its Submit arrived, and submits the next
attempt of a request when it leaves a worker. The same attempt is answered again; a newer one
replaces the older.
"""

from __future__ import annotations

from common import prefix
from common.errors import HTTP_MAPPINGS, Code
from common.identity import AttemptKey
from common.messages import Refused, Submit
from common.model.adapters import name_of_adapter
from services.router.events import Action, Note, Send
from services.router.fleet.prompt_quarantine import QuarantinedPrompt
from services.router.placement.types import ResourceRequest
from services.router.records.attempt import Attempt
from services.router.records.counts import Counts
from services.router.records.gateway import Gateway
from services.router.records.move import MoveOrder, MoveReason
from services.router.records.states import AttemptEvent, AttemptState, WorkerState
from services.router.rules import admit, attempt_lifecycle, preempt
from services.router.rules.admit import Refusal
from services.router.tables import SharedTables, Tables

REQUEST_ID_CHARS_MAX = 256
MODEL_CHARS_MAX = 64
DIED_WITH_IT = "a worker died with the prompt before its first token"
BY_DRAIN_RATE = frozenset({Code.QUEUE_FULL, Code.OVERLOADED})


def choose_model(
    shared: SharedTables, gateway: Gateway, message: Submit
) -> tuple[Tables | None, list[Action]]:
    """The tables of the model that is asked for. None: it is refused."""
    holder = shared.holder_of_request(message.request_id)
    only = len(shared.models) == 1 and not message.model
    tables = next(iter(shared.models.values())) if only else shared.models.get(message.model)
    refusal = None
    if tables is None:
        known = ", ".join(shared.models)
        asked = f"no model {message.model[:MODEL_CHARS_MAX]!r}" if message.model else "name a model"
        refusal = Refusal(Code.MODEL_NOT_FOUND, f"{asked}; there are: {known}")
    elif holder is not None and holder is not tables:
        sentence = f"a request with this id is running with the model {holder.model}"
        refusal = Refusal(Code.DUPLICATE_REQUEST, sentence)
    if refusal is None:
        return tables, []
    key = (message.request_id, message.attempt)
    return None, [_refused_message(shared.counts, gateway.identity, key, refusal)]


def on_submit(
    tables: Tables, gateway: Gateway, message: Submit, body: bytes | None, now: float
) -> list[Action]:
    """Queues or refuses a new attempt and answers a known one. Placement comes after."""
    key = (message.request_id, message.attempt)
    newest = tables.newest.get(message.request_id)
    over = tables.history.latest(message.request_id)
    actions: list[Action] = []
    if newest is not None:
        live = tables.attempts[message.request_id, newest]
        if live.gateway != gateway.identity:
            refusal = Refusal(
                Code.DUPLICATE_REQUEST, "another gateway's request with this id is running"
            )
            return [
                _refused_message(tables.counts, gateway.identity, key, refusal, model=tables.model)
            ]
        if message.attempt == newest:
            return _answer_repeated(tables, live, message)
        if message.attempt < newest:
            tables.counts.drop("old attempt")
            return []
        aborts = attempt_lifecycle.abort(tables, live, "a newer attempt was submitted", now)
        if live.decode and live.decode != message.moved_from:
            had_token = live.decode_started is not None
            tables.quarantine.doubt(live.digest, live.decode, had_token=had_token)
            actions += aborts
    elif key in tables.attempts:
        return _answer_repeated(tables, tables.attempts[key], message)
    elif over is not None and not _may_resubmit(over, message.attempt):
        tables.counts.drop("old attempt")
        return _answer_ended(over, gateway, message.attempt)
    tables.counts.submitted += 1
    if message.attempt == 1:
        tables.balance.add_request(message.prompt_tokens, message.max_tokens, now)
    if tables.without_decode_since is not None:
        tables.scale.missed(now)
    return actions + _admit(tables, _new_attempt(tables, gateway, message, body, now), now)


def _new_attempt(
    tables: Tables, gateway: Gateway, message: Submit, body: bytes | None, now: float
) -> Attempt:
    attempt = Attempt(
        request_id=message.request_id,
        number=message.attempt,
        gateway=gateway.identity,
        request=ResourceRequest(
            message.prompt_tokens,
            message.max_tokens,
            message.session,
            message.local_reason,
            tuple(prefix.split(message.prefix_hashes)[: prefix.HASHES_MAX]),
            message.adapter,
            patient=message.priority is preempt.LOWEST,
        ),
        body=body or b"",
        received=now,
        model=tables.model,
        key_id=message.key_id,
        tenant=message.tenant,
        priority=message.priority,
        resumable=message.resumable,
        abandoned=message.abandoned,
        avoid=message.left,
        moved_from=message.moved_from,
        names=message.prefix_hashes[: prefix.HASHES_MAX * prefix.HASH_BYTES],
        digest=message.prompt_digest,
        deadline=now + message.deadline_ms / 1000 if message.deadline_ms > 0 else 0.0,
    )
    before = (attempt.request_id, attempt.number - 1)
    row = tables.attempts.get(before) or tables.history.find(before)
    attempt.came_by = _order_of(tables, attempt, row)
    attempt.moved_at = row.moved_at if row is not None else None
    if attempt.moved_from:
        ended = row.finished if row is not None and row.decode == attempt.moved_from else None
        attempt.moved_at = now if ended is None else ended
    elif row is not None and row.outcome == Code.MOVED:  # its gateway heard nothing of that
        attempt.moved_at = row.finished
    attempt.parked_at = row.parked_at if row else None
    if row is not None:
        attempt.follow_copies(row)
    attempt.follows_parked = row is not None and _left_parked(attempt, row)
    if tables.quarantine.must_be_local(attempt.digest):
        attempt.request = attempt.request._replace(local_reason=DIED_WITH_IT)
    admit.set_cost(tables, attempt, message)
    return attempt


def _order_of(tables: Tables, attempt: Attempt, row: Attempt | None) -> MoveOrder | None:
    """By which the attempt before this one, `row`, left its worker, if it did and the order is
    known."""
    if not attempt.moved_from:
        return None
    if row is not None and row.moving and row.decode == attempt.moved_from:
        return row.leaves_by
    worker = tables.workers.get(attempt.moved_from)
    if worker is not None and worker.state is WorkerState.DRAINING:
        return MoveOrder(MoveReason.STOP, f"{worker.name} stopped before the stream had ended")
    return None


def _left_parked(attempt: Attempt, row: Attempt) -> bool:
    """Whether the attempt before this one, `row`, was parked. The order may have been lost on its
    way to the worker, and the attempt over for another reason."""
    if row.leaves_by is None or not row.leaves_by.parks:
        return row.parked
    return attempt.came_by is row.leaves_by or row.outcome == Code.MOVED


def _may_resubmit(over: Attempt, number: int) -> bool:
    """The same attempt is taken again only if it never reached a worker: its gateway was out of
    reach while it was queued."""
    return number > over.number or (number == over.number and over.placement is None)


def _answer_ended(over: Attempt, gateway: Gateway, number: int) -> list[Action]:
    """A gateway that submits again what is over did not receive its end, nor any token of it."""
    if over.gateway != gateway.identity or over.number != number:
        return []
    sentence = over.sentence or "the request was lost"
    if over.state is AttemptState.ENDED:
        sentence = "the request ended, but its tokens were lost on their way"
    return [attempt_lifecycle.failed_message(gateway.identity, over.key, sentence)]


def _answer_repeated(tables: Tables, live: Attempt, message: Submit) -> list[Action]:
    """Whether its client still reads may have changed while the gateway was out of reach."""
    tables.counts.drop("repeated submit")
    if live.abandoned is not message.abandoned:
        tables.set_abandoned(live, abandoned=message.abandoned)
    if live.state in (AttemptState.PLACED, AttemptState.DECODING):
        return [attempt_lifecycle.placed_message(live)]
    return []


def _admit(tables: Tables, attempt: Attempt, now: float) -> list[Action]:
    refusal = _check_request(tables, attempt, now) or admit.check_and_charge(tables, attempt, now)
    tables.add(attempt)
    if refusal is not None:
        return _refuse(tables, attempt, refusal, now)
    tables.enqueue(attempt)
    return []


def _check_request(tables: Tables, attempt: Attempt, now: float) -> Refusal | None:
    """Why this request could not be served even if the fleet were idle."""
    request = attempt.request
    if not 0 < len(attempt.request_id) <= REQUEST_ID_CHARS_MAX or attempt.number < 1:
        sentence = "a request needs an id and an attempt from 1 on"
        return Refusal(Code.INVALID_REQUEST, sentence)
    if request.prompt_tokens < 1 or not attempt.body or bool(request.max_tokens) == tables.pooling:
        needs = "0 (it generates nothing)" if tables.pooling else "above 0"
        sentence = f"a request needs a body, prompt_tokens above 0 and max_tokens {needs}"
        return Refusal(Code.INVALID_REQUEST, sentence)
    if tables.draining:
        return Refusal(Code.DRAINING, "the router is stopping")
    quarantined = tables.quarantine.refuse(attempt.digest, now)
    if quarantined is not None:
        return Refusal(Code.REQUEST_QUARANTINED, quarantine_sentence(quarantined))
    if not tables.can_ever_hold(request):
        return Refusal(Code.CONTEXT_LENGTH_EXCEEDED, too_long_sentence(request))
    lacks = request.adapter and tables.snapshots.any_decode() and not _has_adapter(tables, request)
    if lacks and attempt.number == 1:
        return Refusal(Code.NO_CAPACITY, no_adapter_sentence(request.adapter))
    if decode_wait_expired(tables, now):
        waited = tables.admission.config.no_decode_wait_ms / 1000
        return Refusal(Code.NO_CAPACITY, f"no decode worker was ready in {waited:g} s")
    return None


def quarantine_sentence(prompt: QuarantinedPrompt) -> str:
    deaths = len(prompt.workers)
    return (
        f"{deaths} workers died with this prompt (request {prompt.request_id}); it is quarantined"
    )


def too_long_sentence(request: ResourceRequest) -> str:
    return (
        f"{request.prompt_tokens} prompt tokens and {request.max_tokens} to generate are more than "
        "any decode worker can hold"
    )


def _has_adapter(tables: Tables, request: ResourceRequest) -> bool:
    """Whether a decode worker that is not given up has it, ready or not."""
    return any(
        request.adapter in worker.adapters
        for worker in tables.workers.values()
        if worker.role.decodes and not worker.away
    )


def no_adapter_sentence(adapter: str) -> str:
    name = name_of_adapter(adapter)
    return f"no decode worker has the adapter {name!r}; `baton ctl adapter list` says why"


def adapter_wait_expired(tables: Tables, attempt: Attempt, now: float) -> bool:
    """Whether it waited for as long as for a decode worker, and none has its adapter."""
    patience = tables.admission.config.no_decode_wait_ms / 1000
    late = now - attempt.received > patience
    return late and not _has_adapter(tables, attempt.request)


def decode_wait_expired(tables: Tables, now: float) -> bool:
    """Whether no decode worker has been ready for so long that requests no longer wait for one.
    Where the first one is woken or started for them, they wait as they do for any other."""
    if tables.starts_from_zero:
        return False
    since = tables.without_decode_since
    patience = tables.admission.config.no_decode_wait_ms / 1000
    return since is not None and now - since > patience


def refuse(tables: Tables, attempt: Attempt, code: Code, sentence: str, now: float) -> list[Action]:
    """Ends a queued attempt."""
    return _refuse(tables, attempt, Refusal(code, sentence), now)


def refuse_waiting(tables: Tables, now: float) -> list[Action]:
    """Refuses what has waited too long, and all when no decode worker became ready in time."""
    actions: list[Action] = []
    longest = tables.admission.config.queue_ms_max / 1000
    for attempt in list(tables.waiting):
        if attempt.start_by and now >= attempt.start_by:
            actions += refuse_expired(tables, attempt, now)
        elif now - attempt.received >= longest:
            actions += _refuse_unplaced(tables, attempt, now)
        elif attempt.request.adapter and adapter_wait_expired(tables, attempt, now):
            sentence = no_adapter_sentence(attempt.request.adapter)
            actions += refuse(tables, attempt, Code.NO_CAPACITY, sentence, now)
    if decode_wait_expired(tables, now):
        sentence = "no decode worker became ready in time"
        actions += refuse_all(tables, Code.NO_CAPACITY, sentence, now)
    return actions


def refuse_all(tables: Tables, code: Code, sentence: str, now: float) -> list[Action]:
    actions: list[Action] = []
    for attempt in list(tables.waiting):
        actions += refuse(tables, attempt, code, sentence, now)
    return actions


def refuse_expired(tables: Tables, attempt: Attempt, now: float) -> list[Action]:
    """Its first token would come too late now."""
    waited = (now - attempt.received) * 1000
    deadline = attempt.deadline - attempt.received
    own = attempt.deadline and admit.ttft_limit_seconds(tables, attempt) == deadline
    what, code = ("deadline", Code.DEADLINE_EXCEEDED) if own else ("TTFT SLO", Code.OVERLOADED)
    sentence = f"its {what} cannot be met any more after {waited:.0f} ms in the queue"
    return refuse(tables, attempt, code, sentence, now)


def _refuse_unplaced(tables: Tables, attempt: Attempt, now: float) -> list[Action]:
    """It has waited for as long as anything may."""
    lacked = f"it waits for {attempt.waits_for.value}" if attempt.waits_for else "others are first"
    sentence = f"it was not placed after {now - attempt.received:.0f} s in the queue: {lacked}"
    return refuse(tables, attempt, Code.OVERLOADED, sentence, now)


def _refuse(tables: Tables, attempt: Attempt, refusal: Refusal, now: float) -> list[Action]:
    code, sentence = refusal.code, refusal.sentence
    retry = _retry_after_ms(tables, attempt, refusal, now)
    message = _refused_message(
        tables.counts, attempt.gateway, attempt.key, refusal, retry, tables.model
    )
    attempt_lifecycle.finish(tables, attempt, AttemptEvent.REFUSED, code, sentence, now)
    fields: dict[str, object] = {"request_id": attempt.request_id, "code": code.value}
    return [message, Note("debug", "request.refused", sentence, fields)]


def _retry_after_ms(tables: Tables, attempt: Attempt, refusal: Refusal, now: float) -> int:
    """When the client may try again; 0 = another try would be refused, too."""
    if not HTTP_MAPPINGS[refusal.code].retryable:
        return 0
    none = tables.scale.starts_from_zero and tables.without_decode_since is not None
    if none and (refusal.code in BY_DRAIN_RATE or refusal.code is Code.NO_CAPACITY):
        wait = tables.scale.wait_seconds(now)
        return admit.told_exactly(tables, attempt, wait)
    if refusal.retry_after is None and refusal.code not in BY_DRAIN_RATE:
        config = tables.admission.config
        no_worker = refusal.code is Code.NO_CAPACITY
        wait = config.no_decode_wait_ms if no_worker else config.retry_after_min_ms
        refusal = refusal._replace(retry_after=wait / 1000)
    return admit.retry_after_ms(tables, attempt, refusal, now)


def _refused_message(
    counts: Counts,
    gateway: str,
    key: AttemptKey,
    refusal: Refusal,
    retry_after_ms: int = 0,
    model: str = "",
) -> Send:
    counts.refuse(refusal.code.value, model)
    refused = Refused(
        code=refusal.code,
        message=refusal.sentence,
        request_id=key[0],
        attempt=key[1],
        retry_after_ms=retry_after_ms,
    )
    return Send(gateway, refused)
