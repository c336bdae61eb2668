"""What a gateway has counted since its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """`stale`: deltas dropped for their attempt, index or sender; `unknown`: of no live request;
    `recovered`: streams that were begun anew on another worker."""

    opened: int = 0
    ended: int = 0
    failed: int = 0
    closed: int = 0
    recovered: int = 0
    stale: int = 0
    unknown: int = 0
