"""An admitted attempt, from the reports of its workers to its end.

The promises of KV follow one rule. On D an attempt keeps its promise from placement until D itself
reports the end, or is lost; an abort does not end it, because D may still hold the blocks. On P it
keeps its promise until D has taken the KV or the attempt is over, and P is sent an Abort whenever D
did not take the KV.
"""

from __future__ import annotations

import msgspec

from common.blocks import element_on_wire
from common.errors import Code
from common.identity import AttemptKey
from common.messages import (
    Abandoned,
    Abort,
    Cancel,
    Decode,
    DecodeStarted,
    Ended,
    Failed,
    HandOver,
    KvHolder,
    Placed,
    Prefilled,
    PrefillEnded,
    Role,
    Ticket,
)
from common.net.kv_address import parts_between
from services.router.admission.keys import actual_cost
from services.router.estimates import learning
from services.router.events import Action, Send
from services.router.placement.types import WorkerView
from services.router.records.attempt import Attempt
from services.router.records.gateway import Gateway
from services.router.records.move import MoveOutcome
from services.router.records.states import TERMINAL, AttemptEvent, AttemptState
from services.router.records.worker import Worker
from services.router.rules import degradation_reports, pair_reports, request_records
from services.router.tables import Tables


def on_cancel(tables: Tables, gateway: Gateway, message: Cancel, now: float) -> list[Action]:
    attempt = tables.attempts.get((message.request_id, message.attempt))
    if attempt is None or attempt.gateway != gateway.identity:
        tables.counts.drop("unknown cancel")
        return []
    return abort(tables, attempt, message.reason, now)


def on_abandoned(tables: Tables, gateway: Gateway, message: Abandoned) -> list[Action]:
    attempt = tables.attempts.get((message.request_id, message.attempt))
    if attempt is None or attempt.gateway != gateway.identity:
        tables.counts.drop("unknown abandoned")
    elif attempt.abandoned is not message.abandoned:
        tables.set_abandoned(attempt, abandoned=message.abandoned)
    return []


def on_prefill_ended(
    tables: Tables, worker: Worker, message: PrefillEnded, now: float
) -> list[Action]:
    degradation_reports.record_prefill(tables, message)
    _trust_survivor(tables, worker, message)
    key = (message.request_id, message.attempt)
    live = tables.attempts.get(key)
    attempt = live or tables.history.find(key)
    if attempt is None or attempt.prefill != worker.identity or attempt.prefill_report is not None:
        tables.counts.drop("stale prefill report")
        return []
    attempt.prefill_report, attempt.prefill_ended = message, now
    if message.error:
        attempt.prefill_problem = f"{worker.name} failed: {message.message or message.error}"
    learning.learn_prefill(tables.estimates, worker, attempt, now)
    if not message.error:
        tokens = attempt.request.prompt_tokens
        tables.balance.add_prompt(tokens, max(0, tokens - message.cached_tokens), now)
    pair_reports.record_pull(tables, attempt, message, now)
    if live is None:
        return []
    tables.finish_prompt(attempt, worker)
    if message.error or attempt.decode_report is not None:
        tables.close_prefill(attempt)
    elif attempt.state is AttemptState.PLACED:
        tables.admission.awaiting_first_token[attempt.key] = now
    if not message.cached_tokens:
        return []
    request_id, number = attempt.key
    prefilled = Prefilled(
        request_id=request_id, attempt=number, cached_tokens=message.cached_tokens
    )
    return [Send(attempt.gateway, prefilled)]


def on_decode_started(
    tables: Tables, worker: Worker, message: DecodeStarted, now: float
) -> list[Action]:
    attempt = tables.attempts.get((message.request_id, message.attempt))
    if attempt is None and _add_late_report(tables, worker, message):
        return []
    if attempt is None or attempt.decode != worker.identity or attempt.decode_report is not None:
        tables.counts.drop("stale decode report")
        return []
    attempt.decode_report, attempt.decode_started = message, now
    tables.quarantine.record_token(attempt.digest)
    worker.start_decoding(attempt.key)
    tables.admission.awaiting_first_token.pop(attempt.key, None)
    attempt.batch = len(worker.decoding)
    learning.learn_first_token(tables.estimates, worker, attempt, now)
    if attempt.placement is not None and attempt.placement.prefill is None:
        tokens = attempt.request.prompt_tokens
        if not attempt.moved_from:
            tables.balance.add_prompt(tokens, max(0, tokens - message.cached_tokens), now)
    tables.finish_prompt(attempt, worker)
    if attempt.state is AttemptState.PLACED:
        attempt.apply(AttemptEvent.STARTED)
    if attempt.moved_from:
        _record_arrival(tables, attempt, message, now)
    degradation_reports.record_first_token(tables, attempt, worker, message, now)
    actions = pair_reports.record_first_token(tables, attempt, message, now)
    if message.kv is None or not message.kv.complete:
        return actions + abort_prefill(tables, attempt, "decode did without this KV")
    if attempt.prefill_report is not None:
        tables.close_prefill(attempt)
    return actions


def _add_late_report(tables: Tables, worker: Worker, message: DecodeStarted) -> bool:
    """What the handoff moved of an attempt that was over when D heard of it: `explain` shows it,
    and nothing is learned of it any more."""
    attempt = tables.history.find((message.request_id, message.attempt))
    before = attempt.decode_report if attempt is not None else None
    if attempt is None or attempt.decode != worker.identity or message.kv is None:
        return False
    if before is None or before.kv is not None:
        return False
    attempt.decode_report = msgspec.structs.replace(before, kv=message.kv, kv_ms=message.kv_ms)
    return True


def _record_arrival(tables: Tables, attempt: Attempt, message: DecodeStarted, now: float) -> None:
    """A stream goes on after it left another decode worker."""
    counts, reason, kv = tables.counts, attempt.move_reason, message.kv
    parked = attempt.came_by is not None and attempt.came_by.parks
    if not parked:  # which was counted when it was
        whole = kv is not None and kv.complete
        counts.move(reason, MoveOutcome.MOVED if whole else MoveOutcome.RECOMPUTED)
    if kv is not None:
        counts.move_bytes[reason] = counts.move_bytes.get(reason, 0) + kv.payload_bytes
    before = tables.history.find((attempt.request_id, attempt.number - 1))
    if before is not None and before.finished is not None:
        pauses = counts.park_pauses if parked else counts.move_pauses
        pauses.observe(now - before.finished)


def on_ended(tables: Tables, worker: Worker, message: Ended, now: float) -> list[Action]:
    attempt = tables.attempts.get((message.request_id, message.attempt))
    _trust_survivor(tables, worker, message)
    if attempt is None or attempt.decode != worker.identity:
        tables.counts.drop("stale end")
        return []
    attempt.end_report = message
    learning.learn_end(tables.estimates, worker, attempt, now)
    if message.finish_reason:
        allowed = attempt.request.max_tokens
        tables.balance.add_output(allowed, message.completion_tokens, now)
    actions = abort_prefill(tables, attempt, "the request is over")
    event = AttemptEvent.FAILED if message.error else AttemptEvent.ENDED
    if message.error in (Code.CANCELLED, Code.MOVED):
        event = AttemptEvent.CANCELLED
    sentence = attempt.sentence or message.message
    finish(tables, attempt, event, message.error or message.finish_reason, sentence, now)
    if attempt.state is AttemptState.FAILED and message.error == Code.NO_CAPACITY:
        failed = failed_message(attempt.gateway, attempt.key, sentence, Code.NO_CAPACITY)
        actions.append(failed)
    return actions


def _trust_survivor(tables: Tables, worker: Worker, message: Ended | PrefillEnded) -> None:
    """Who reports the end of an attempt has outlived its prompt, even if it was given up before."""
    key = (message.request_id, message.attempt)
    attempt = tables.attempts.get(key) or tables.history.find(key)
    if attempt is not None and tables.quarantine.trust(attempt.digest, worker.identity):
        tables.changes.capacity = True


def abort(tables: Tables, attempt: Attempt, reason: str, now: float) -> list[Action]:
    """Gives the attempt up. Idempotent."""
    if attempt.state is AttemptState.QUEUED:
        finish(tables, attempt, AttemptEvent.ABORTED, Code.CANCELLED, reason, now)
        return []
    if attempt.state is AttemptState.ABORTING:
        return []
    attempt.apply(AttemptEvent.ABORTED)
    attempt.sentence = reason
    decode = abort_message(attempt.decode, attempt.key, reason)
    return [decode, *abort_prefill(tables, attempt, reason)]


def abort_prefill(tables: Tables, attempt: Attempt, reason: str) -> list[Action]:
    """P need hold nothing for the attempt any more and is told so, unless D took all of its KV:
    then it has computed the prompt, and its report is under way. Idempotent."""
    if not attempt.prefill_open:
        return []
    tables.close_prefill(attempt)
    report = attempt.decode_report
    if report is not None and report.kv is not None and report.kv.complete:
        return []
    return [abort_message(attempt.prefill, attempt.key, reason)]


def fail(tables: Tables, attempt: Attempt, sentence: str, now: float) -> list[Action]:
    """D is lost to the attempt: the gateway is sent `Failed`, P is released."""
    actions = abort_prefill(tables, attempt, "decode worker lost")
    if attempt.state is AttemptState.ABORTING:
        sentence = attempt.sentence
        finish(tables, attempt, AttemptEvent.FAILED, Code.CANCELLED, sentence, now)
        return actions
    finish(tables, attempt, AttemptEvent.FAILED, Code.WORKER_LOST, sentence, now)
    tables.gateways[attempt.gateway].lost.append(attempt.key)
    return [failed_message(attempt.gateway, attempt.key, sentence), *actions]


def lose_prefill(tables: Tables, attempt: Attempt, sentence: str) -> None:
    """P is lost to the attempt. Nobody need be told: D's load fails, and D computes the prompt."""
    attempt.prefill_problem = sentence
    tables.close_prefill(attempt)


def finish(
    tables: Tables, attempt: Attempt, event: AttemptEvent, outcome: str, sentence: str, now: float
) -> None:
    """Ends an attempt; there is no other way out of the tables."""
    served = attempt.state is not AttemptState.QUEUED
    attempt.apply(event)
    assert attempt.state in TERMINAL
    attempt.finished, attempt.outcome, attempt.sentence = now, str(outcome), sentence
    tables.remove(attempt)
    attempt.drop_prompt()
    if attempt.trial:
        tables.quarantine.trials.end(attempt.key)
    if attempt.state is AttemptState.ENDED:
        clear_prompt(tables, attempt)
    if served:
        tables.drain_rate.ended(now)
        pair_reports.record_end(tables, attempt, now)
    _settle_cost(tables, attempt, served=served)
    _count(tables, attempt.state)
    _count_unfinished_moves(tables, attempt)
    refused = attempt.state is AttemptState.REFUSED
    (tables.refusals if refused else tables.history).add(attempt)
    request_records.record_end(tables, attempt, now)


def clear_prompt(tables: Tables, attempt: Attempt) -> None:
    """The workers lived with its prompt. A prefill worker is vouched for only if it computed the
    prompt."""
    computed = attempt.prefill and not attempt.prefill_problem
    roles = (Role.PREFILL, Role.DECODE) if computed else (Role.DECODE,)
    tables.quarantine.clear(attempt.digest, roles)


def _settle_cost(tables: Tables, attempt: Attempt, *, served: bool) -> None:
    """Its key and its tenant pay the real cost instead of the predicted one; nothing if it was
    never placed."""
    state = tables.admission
    state.awaiting_first_token.pop(attempt.key, None)
    more = (actual_cost(attempt, state.config.output_cost) if served else 0.0) - attempt.cost
    if served:
        tables.waiting.settle(attempt, more)
    if attempt.key in state.charged:
        state.charged.remove(attempt.key)
        state.keys.ended(attempt.key_id, more)


def _count(tables: Tables, state: AttemptState) -> None:
    counts = tables.counts
    if state is AttemptState.ENDED:
        counts.ended += 1
    elif state is AttemptState.FAILED:
        counts.failed += 1
    elif state is AttemptState.CANCELLED:
        counts.cancelled += 1


def _count_unfinished_moves(tables: Tables, attempt: Attempt) -> None:
    if attempt.moved_from and attempt.decode_started is None:
        tables.counts.move(attempt.move_reason, MoveOutcome.LOST)
    order, left = attempt.leaves_by, attempt.outcome in (Code.MOVED, Code.DRAINING)
    if order is not None and order.told is not None and not left:
        tables.counts.move(order.reason, MoveOutcome.ENDED)


def placed_message(attempt: Attempt) -> Send:
    assert attempt.placement is not None
    decode, prefill = attempt.placement.decode, attempt.placement.prefill
    return Send(
        attempt.gateway,
        Placed(
            request_id=attempt.request_id,
            attempt=attempt.number,
            decode=decode.name,
            decode_incarnation=decode.incarnation,
            prefill=prefill.name if prefill else "",
        ),
    )


def failed_message(
    gateway: str, key: AttemptKey, sentence: str, code: Code = Code.WORKER_LOST
) -> Send:
    return Send(gateway, Failed(request_id=key[0], attempt=key[1], code=code, message=sentence))


def abort_message(worker: str, key: AttemptKey, reason: str) -> Send:
    return Send(worker, Abort(request_id=key[0], attempt=key[1], reason=reason))


def decode_message(
    tables: Tables, attempt: Attempt, taken_by: Ticket | None, holder: KvHolder | None
) -> Decode:
    gateway = tables.gateways[attempt.gateway]
    return Decode(
        request_id=attempt.request_id,
        attempt=attempt.number,
        gateway=gateway.name,
        gateway_incarnation=gateway.incarnation,
        stream_endpoint=gateway.stream_endpoint,
        ticket=taken_by,
        holder=holder,
        kv_tokens=attempt.request.kv_tokens,
        kv_tokens_near=attempt.kv_tokens_near,
    )


def hand_over(tables: Tables, attempt: Attempt, source: Worker, taken_by: Ticket) -> Send:
    """The worker that the stream left is to give what it keeps to the D of the ticket."""
    tables.counts.moved += 1
    tables.parked.pop((attempt.request_id, attempt.number - 1), None)
    order = HandOver(ticket=taken_by, kept_attempt=attempt.number - 1)
    return Send(source.identity, order)


def ticket(tables: Tables, attempt: Attempt, decode: WorkerView, prefill: WorkerView) -> Ticket:
    canonical = prefill.fingerprint != decode.fingerprint
    converted = canonical and prefill.kv_meaning != decode.kv_meaning
    return Ticket(
        secret=tables.secrets(),
        request_id=attempt.request_id,
        attempt=attempt.number,
        fingerprint=prefill.fingerprint,
        prefill=prefill.name,
        prefill_incarnation=prefill.incarnation,
        decode=decode.name,
        decode_incarnation=decode.incarnation,
        kv_address=prefill.kv_address,
        lease_ms=tables.settings.lease_ms,
        canonical=canonical,
        parts=parts_between(prefill.kv_address, decode.kv_address),
        element=element_on_wire(prefill.kv_element, decode.kv_element) if converted else "",
    )
