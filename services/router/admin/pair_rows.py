"""Breakers of pairs of workers, as the verbs show them."""

from __future__ import annotations

from typing import Any

from common.identity import name_of
from services.router.placement.pair_breaker import PairBreaker, PairState
from services.router.tables import SharedTables, Tables


def rows(shared: SharedTables, now: float) -> list[dict[str, Any]]:
    """All pairs that have a breaker, by model, the longest in its state first."""
    models = shared.models.values()
    return [_row(pair, now) for tables in models for pair in tables.placement_memory.pairs.rows()]


def not_paired_with(tables: Tables, identity: str) -> list[str]:
    """Names of the workers of the other role with which this one exchanges no KV now."""
    return [
        name_of(pair.name[1] if pair.name[0] == identity else pair.name[0])
        for pair in tables.placement_memory.pairs.rows()
        if identity in pair.name and pair.state is not PairState.CLOSED
    ]


def _row(pair: PairBreaker, now: float) -> dict[str, Any]:
    open_ = pair.state is PairState.OPEN
    return {
        "prefill": name_of(pair.name[0]),
        "decode": name_of(pair.name[1]),
        "state": pair.state.value,
        "since_s": round(now - pair.since, 1),
        "retry_in_s": round(max(0.0, pair.until - now), 1) if open_ else 0.0,
        "openings": pair.openings,
        "strikes": len(pair.strikes),
        "kind": pair.kind,
        "message": pair.message,
    }
