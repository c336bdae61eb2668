"""What handoffs tell about the pair that made them. Called by `core*.py` only."""

from __future__ import annotations

from common.messages import DecodeStarted, PairTrouble
from services.router.events import Action, Note, PairsCleared
from services.router.pairs import Pair
from services.router.records import Try, Worker
from services.router.state import TryState
from services.router.tables import Tables

MESSAGE_CHARS_MAX = 256


def trouble(tables: Tables, decode: Worker, message: PairTrouble, now: float) -> list[Action]:
    """D could not take a prefill worker's KV. A prefill worker that is gone has an own name for
    that, and a request that was given up proves nothing."""
    each = tables.tries.get((message.request_id, message.attempt))
    prefill = f"{message.prefill}|{message.prefill_incarnation}"
    if each is None or each.decode != decode.identity or each.prefill != prefill:
        tables.counts.drop("stale pair trouble")
        return []
    return _strike(tables, each, message.kind, message.message[:MESSAGE_CHARS_MAX], now)


def started(tables: Tables, each: Try, message: DecodeStarted, now: float) -> list[Action]:
    """D has made its first token: by KV that came, or without it."""
    if not each.prefill or message.kv is None:
        return []
    if message.kv.complete:
        pair = tables.placing.pairs.came((each.prefill, each.decode), now)
        if pair is None:
            return []
        sentence = f"{_named(pair)} hand KV over again: a trial came through"
        return [Note("info", "pair.closed", sentence)]
    if message.kv.retries:
        return _strike(tables, each, "transfer", "no KV came after retries", now)
    return []


def clear(tables: Tables, event: PairsCleared) -> list[Action]:
    cleared = tables.placing.pairs.clear(event.prefill, event.decode)
    names = [_named(pair) for pair in cleared]
    return [
        Note("info", "pair.cleared", f"an operator lets {name} hand KV over again")
        for name in names
    ]


def over(tables: Tables, each: Try, now: float) -> None:
    if each.prefill:
        tables.placing.pairs.over((each.prefill, each.decode), each.key, now)


def _strike(tables: Tables, each: Try, kind: str, message: str, now: float) -> list[Action]:
    prefill = tables.workers.get(each.prefill)
    if prefill is None or not prefill.connected or each.prefill_problem:
        return []
    if each.state is TryState.ABORTING:
        return []
    name = (each.prefill, each.decode)
    pair = tables.placing.pairs.trouble(name, each.key, kind, message, now)
    if pair is None:
        return []
    why = f"{kind} trouble" + (f" ({message})" if message else "")
    sentence = f"{_named(pair)} are not paired for {pair.until - now:.0f} s: {why}"
    return [Note("warning", "pair.opened", sentence, {"request_id": each.request_id})]


def _named(pair: Pair) -> str:
    prefill, decode = (identity.rpartition("|")[0] for identity in pair.name)
    return f"{prefill} and {decode}"
