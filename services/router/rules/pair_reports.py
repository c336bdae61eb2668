"""What handoffs report about their pair of workers, for the pair's breaker."""

from __future__ import annotations

from common.identity import identity_of, is_copy, name_of
from common.messages import DecodeStarted, PairTrouble, PrefillEnded
from services.router.events import Action, Note, PairsCleared
from services.router.placement.pair_breaker import PairBreaker
from services.router.records.attempt import Attempt
from services.router.records.states import AttemptState
from services.router.records.worker import Worker
from services.router.tables import SharedTables, Tables

MESSAGE_CHARS_MAX = 256

PairName = tuple[str, str]
"""Identities of the worker that gives KV and of the one that takes it."""


def on_pair_trouble(
    tables: Tables, worker: Worker, message: PairTrouble, now: float
) -> list[Action]:
    """D could not take the KV of its prefill worker, or a worker what it pulled."""
    attempt = tables.attempts.get((message.request_id, message.attempt))
    name = (identity_of(message.prefill, message.prefill_incarnation), worker.identity)
    if is_copy(message.request_id):
        return _record_copy_failure(tables, name, message, now)
    if attempt is None or name not in (_handing_over(attempt), pulling(attempt)):
        tables.counts.drop("stale pair trouble")
        return []
    why = message.message[:MESSAGE_CHARS_MAX]
    return _record_failure(tables, attempt, name, message.kind, why, now)


def _record_copy_failure(
    tables: Tables, name: PairName, message: PairTrouble, now: float
) -> list[Action]:
    """A worker could not take blocks that another had offered."""
    giver = tables.workers.get(name[0])
    if giver is None or not giver.connected:
        return []
    key, why = (message.request_id, message.attempt), message.message[:MESSAGE_CHARS_MAX]
    pairs = tables.placement_memory.pairs
    return _opened(pairs.record_failure(name, key, message.kind, why, now), message.kind, why, now)


def _handing_over(attempt: Attempt) -> PairName:
    return attempt.prefill, attempt.decode


def pulling(attempt: Attempt) -> PairName | None:
    """The worker whose store the beginning of the prompt was to come out of, and the one that
    computes it."""
    pull = attempt.placement.pull if attempt.placement is not None else None
    return (pull.stored.identity, attempt.prefill or attempt.decode) if pull is not None else None


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
        name, why = _handing_over(attempt), "no KV came after retries"
        return _record_failure(tables, attempt, name, "transfer", why, now)
    return []


def record_end(tables: Tables, attempt: Attempt, now: float) -> None:
    for name in (_handing_over(attempt), pulling(attempt)):
        if name is not None and name[0]:
            tables.placement_memory.pairs.end_trial(name, attempt.key, now)


def record_pull(tables: Tables, attempt: Attempt, message: PrefillEnded, now: float) -> None:
    """P has computed the prompt, perhaps with blocks out of a store."""
    name = pulling(attempt)
    if name is not None and message.pull is not None:
        tables.placement_memory.pairs.record_success(name, now)


def clear_pairs(shared: SharedTables, event: PairsCleared) -> list[Action]:
    return [
        Note("info", "pair.cleared", f"an operator lets {_names(pair)} hand KV over again")
        for tables in shared.models.values()
        for pair in tables.placement_memory.pairs.clear(event.prefill, event.decode)
    ]


def _record_failure(
    tables: Tables, attempt: Attempt, name: PairName, kind: str, message: str, now: float
) -> list[Action]:
    """A failure does not count where it has another known cause: the worker that gives the KV is
    gone or failed, or the request was given up."""
    giver = tables.workers.get(name[0])
    failed = name == _handing_over(attempt) and attempt.prefill_problem
    if giver is None or not giver.connected or failed:
        return []
    if attempt.state is AttemptState.ABORTING:
        return []
    pair = tables.placement_memory.pairs.record_failure(name, attempt.key, kind, message, now)
    return _opened(pair, kind, message, now, {"request_id": attempt.request_id})


def _opened(
    pair: PairBreaker | None,
    kind: str,
    message: str,
    now: float,
    fields: dict[str, object] | None = None,
) -> list[Action]:
    """`pair`: that this failure has opened; None: it has opened none."""
    if pair is None:
        return []
    why = f"{kind} trouble" + (f" ({message})" if message else "")
    sentence = f"{_names(pair)} are not paired for {pair.until - now:.0f} s: {why}"
    return [Note("warning", "pair.opened", sentence, fields or {})]


def _names(pair: PairBreaker) -> str:
    prefill, decode = (name_of(identity) for identity in pair.name)
    return f"{prefill} and {decode}"
