"""What becomes of a request whose worker was lost: it goes on elsewhere, or ends in a clear error.

A stream goes on as a new attempt whose prompt is the old one plus all that the client has. That is
exact as long as D's sampling needs nothing but those tokens, or restores what it needs. What it
cannot restore is an `obstacle`; such a stream ends with `stream_interrupted` instead of going on
differently. A request that was on `worker_deaths_max` workers when they died is not given
a further one: it may be what kills them.
"""

from __future__ import annotations

import msgspec

from common.errors import BatonError, Code
from common.messages import Fleet, Sampling
from common.resume import lacking

MOVABLE = frozenset(
    {
        Code.WORKER_LOST,
        Code.ENGINE_FAILED,
        Code.KV_TRANSFER_FAILED,
        Code.PREEMPTED,
        Code.STREAM_INTERRUPTED,
        Code.DRAINING,
    }
)
ATTEMPTS_MAX = 16
PLACEMENTS_MAX = 3
"""How often a request is placed anew because D declined it before it began."""


def obstacle(sampling: Sampling, emitted: int, fleet: Fleet | None) -> str:
    """Why another D cannot go on exactly after `emitted` tokens; empty when it can."""
    return lacking(sampling, restores=fleet is not None and fleet.restores) if emitted else ""


def rest_of(sampling: Sampling, emitted: int) -> Sampling:
    """What is still to be made after `emitted` tokens."""
    if not emitted:
        return sampling
    return msgspec.structs.replace(
        sampling,
        max_tokens=sampling.max_tokens - emitted,
        min_tokens=max(0, sampling.min_tokens - emitted),
        prompt_logprobs=None,
    )


def interrupted(error: BatonError, emitted: int, lacking: str) -> BatonError:
    """What the client hears when tokens were sent already and no more can come. `lacking`: the
    obstacle."""
    sentence = error.message
    if lacking:
        sentence += f"; it cannot go on elsewhere without {lacking}"
    return BatonError(
        Code.STREAM_INTERRUPTED if emitted else error.code,
        sentence,
        retry_after_ms=error.retry_after_ms,
    )


def quarantined(deaths: int) -> BatonError:
    sentence = f"{deaths} decode workers died while they ran this request; it is not tried again"
    return BatonError(Code.REQUEST_QUARANTINED, sentence)
