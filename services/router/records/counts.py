"""Counters of what happened to requests since the router's start."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """All of attempts, except where a field says otherwise."""

    #: New attempts that gateways submitted, the refused ones included.
    submitted: int = 0
    #: Given to workers by this router.
    placed: int = 0
    #: Of those placed, the ones without a prefill worker.
    placed_local: int = 0
    #: Found on a worker; another router had placed them, or this one before a restart.
    adopted: int = 0
    #: Served to their last token.
    ended: int = 0
    #: Lost with a worker, or ended by an error of a worker.
    failed: int = 0
    #: Given up by their gateway or by an operator.
    cancelled: int = 0
    #: Refused before placement, by error code.
    refused: dict[str, int] = field(default_factory=dict)
    #: Messages without effect, by reason.
    dropped: dict[str, int] = field(default_factory=dict)

    def refuse(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
