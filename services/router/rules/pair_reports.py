"""What handoffs report about their pair of workers, for the pair's breaker."""

from __future__ import annotations

from common.identity import identity_of, name_of
from common.messages import DecodeStarted, PairTrouble
from services.router.events import Action, Note, PairsCleared
from services.router.placement.pair_breaker import PairBreaker
from services.router.records.attempt import Attempt
from services.router.records.states import AttemptState
from services.router.records.worker import Worker
from services.router.tables import SharedTables, Tables

MESSAGE_CHARS_MAX = 256


def on_pair_trouble(
    tables: Tables, decode: Worker, message: PairTrouble, now: float
) -> list[Action]:
    """D could not take the KV of its prefill worker."""
    attempt = tables.attempts.get((message.request_id, message.attempt))
    prefill = identity_of(message.prefill, message.prefill_incarnation)
    if attempt is None or attempt.decode != decode.identity or attempt.prefill != prefill:
        tables.counts.drop("stale pair trouble")
        return []
    return _record_failure(tables, attempt, message.kind, message.message[:MESSAGE_CHARS_MAX], now)


def record_first_token(
    tables: Tables, attempt: Attempt, message: DecodeStarted, now: float
) -> list[Action]:
    """D has made the first token, with the KV of its prefill worker or without it."""
    if not attempt.prefill or message.kv is None:
        return []
    if message.kv.complete:
        name = (attempt.prefill, attempt.decode)
        pair = tables.placement_memory.pairs.record_success(name, now)
        if pair is None:
            return []
        sentence = f"{_names(pair)} hand KV over again: a trial came through"
        return [Note("info", "pair.closed", sentence)]
    if message.kv.retries:
        return _record_failure(tables, attempt, "transfer", "no KV came after retries", now)
    return []


def record_end(tables: Tables, attempt: Attempt, now: float) -> None:
    if attempt.prefill:
        name = (attempt.prefill, attempt.decode)
        tables.placement_memory.pairs.end_trial(name, attempt.key, now)


def clear_pairs(shared: SharedTables, event: PairsCleared) -> list[Action]:
    return [
        Note("info", "pair.cleared", f"an operator lets {_names(pair)} hand KV over again")
        for tables in shared.models.values()
        for pair in tables.placement_memory.pairs.clear(event.prefill, event.decode)
    ]


def _record_failure(
    tables: Tables, attempt: Attempt, kind: str, message: str, now: float
) -> list[Action]:
    """A failure does not count where it has another known cause: the prefill worker is gone or
    failed, or the request was given up."""
    prefill = tables.workers.get(attempt.prefill)
    if prefill is None or not prefill.connected or attempt.prefill_problem:
        return []
    if attempt.state is AttemptState.ABORTING:
        return []
    name = (attempt.prefill, attempt.decode)
    pair = tables.placement_memory.pairs.record_failure(name, attempt.key, kind, message, now)
    if pair is None:
        return []
    why = f"{kind} trouble" + (f" ({message})" if message else "")
    sentence = f"{_names(pair)} are not paired for {pair.until - now:.0f} s: {why}"
    return [Note("warning", "pair.opened", sentence, {"request_id": attempt.request_id})]


def _names(pair: PairBreaker) -> str:
    prefill, decode = (name_of(identity) for identity in pair.name)
    return f"{prefill} and {decode}"
