"""Counters of what happened to requests since the router's start."""

from __future__ import annotations

import msgspec

from common.net.admin_status import Totals


class Counts(Totals, kw_only=True):
    """All of attempts, except where a field says otherwise."""

    #: Refused before placement, by error code.
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    #: Messages without effect, by reason.
    dropped: dict[str, int] = msgspec.field(default_factory=dict)

    def refuse(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
