"""Pairs of prefill and decode worker that had trouble, as verbs show them."""

from __future__ import annotations

from typing import Any

from services.router.pairs import Pair, PairState
from services.router.tables import Tables


def rows(tables: Tables, now: float) -> list[dict[str, Any]]:
    return [_row(pair, now) for pair in tables.placing.pairs.rows()]


def not_paired_with(tables: Tables, identity: str) -> list[str]:
    """Names of the workers of the other role that this one does not work with now."""
    return [
        _name(pair.name[1] if pair.name[0] == identity else pair.name[0])
        for pair in tables.placing.pairs.rows()
        if identity in pair.name and pair.state is not PairState.CLOSED
    ]


def _row(pair: Pair, now: float) -> dict[str, Any]:
    open_ = pair.state is PairState.OPEN
    return {
        "prefill": _name(pair.name[0]),
        "decode": _name(pair.name[1]),
        "state": pair.state.value,
        "since_s": round(now - pair.since, 1),
        "retry_in_s": round(max(0.0, pair.until - now), 1) if open_ else 0.0,
        "openings": pair.openings,
        "strikes": len(pair.strikes),
        "kind": pair.kind,
        "message": pair.message,
    }


def _name(identity: str) -> str:
    return identity.rpartition("|")[0]
