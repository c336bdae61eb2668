"""Counters of what happened to requests since the router's start."""

from __future__ import annotations

import msgspec

from common.net.admin_status import Totals
from common.telemetry.buckets import PAUSE_SECONDS, Buckets
from services.router.records.move import MoveOutcome, MoveReason


class Counts(Totals, kw_only=True):
    """All of attempts, except where a field says otherwise."""

    #: Refused before placement, by error code.
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    #: The same by model and code; a model that the fleet file does not have is the empty name.
    refused_of_model: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    #: Messages without effect, by reason.
    dropped: dict[str, int] = msgspec.field(default_factory=dict)

    #: Moves of streams, by reason and outcome.
    moves: dict[tuple[MoveReason, MoveOutcome], int] = msgspec.field(default_factory=dict)

    #: From the end of a stream at one decode worker to its next token at another.
    move_pauses: Buckets = msgspec.field(default_factory=lambda: Buckets(PAUSE_SECONDS))

    #: From the end of a stream that was parked for its budget to its next token.
    park_pauses: Buckets = msgspec.field(default_factory=lambda: Buckets(PAUSE_SECONDS))

    #: Streams that were promised more KV where they run.
    grants: int = 0

    #: Bytes of KV that came with moves, by reason.
    move_bytes: dict[MoveReason, int] = msgspec.field(default_factory=dict)

    def move(self, reason: MoveReason, outcome: MoveOutcome) -> None:
        self.moves[reason, outcome] = self.moves.get((reason, outcome), 0) + 1

    def refuse(self, code: str, model: str = "") -> None:
        self.refused[code] = self.refused.get(code, 0) + 1
        of_model = (model, code)
        self.refused_of_model[of_model] = self.refused_of_model.get(of_model, 0) + 1

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
