"""Between the health daemon of a host and a worker there: JSON over HTTP on the worker's metrics
socket, where only the host's own daemons come (`common.worker.examined` answers)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.messages.parts import Opinion

CanaryOutcome = Literal["answered", "skipped", "failed"]


class CanaryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Worker, to `POST /canary?ms=N`: what its engine made, within N milliseconds, of the one
    prompt that all workers are given. `tokens`: equal for all of a fingerprint. `alone`: the engine
    had nothing else to do, for a batch may change what a near tie ends in. `sentence`: why it
    failed, or was not tried."""

    outcome: CanaryOutcome
    fingerprint: str
    tokens: tuple[int, ...] = ()
    alone: bool = False
    elapsed_ms: float = 0.0
    sentence: str = ""


class OpinionTold(msgspec.Struct, frozen=True, kw_only=True):
    """Health daemon, as the body of `POST /opinion`; answered by 204. Said again while it stands;
    `for_ms`: after this it is forgotten. `opinion` None: there is nothing against the worker."""

    opinion: Opinion | None
    for_ms: Annotated[float, Meta(ge=0, le=600_000)]
