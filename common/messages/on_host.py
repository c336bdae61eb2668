"""Between the health daemon of a host and a worker there: JSON over HTTP on the worker's metrics
socket, which only the host's own daemons can open (`common.worker.health_endpoints` answers)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.messages.parts import HealthVerdict

CanaryOutcome = Literal["answered", "skipped", "failed"]


class CanaryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Worker, in answer to `POST /canary?ms=N`: what its engine generated within N milliseconds
    from the one prompt that all workers are given."""

    outcome: CanaryOutcome
    fingerprint: str
    #: Generated token ids, which are equal for all engines of a fingerprint.
    tokens: tuple[int, ...] = ()
    # : Whether the engine had nothing else to do. A batch may change which of two nearly equal
    # tokens : is chosen.
    alone: bool = False
    #: Milliseconds until the answer.
    elapsed_ms: float = 0.0
    #: Why it failed or was skipped, else empty.
    sentence: str = ""


class HealthVerdictUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Health daemon, as the body of `POST /opinion`; answered by 204. It is repeated while the
    verdict stands."""

    #: The verdict; None if the worker has no fault.
    health_verdict: HealthVerdict | None = msgspec.field(name="opinion")
    #: Milliseconds after which the worker forgets the verdict.
    for_ms: Annotated[float, Meta(ge=0, le=600_000)]
