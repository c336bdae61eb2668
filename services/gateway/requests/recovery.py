"""Whether a request whose worker was lost goes on elsewhere, or ends with a clear error.

A stream goes on as a new attempt. Its prompt is the old prompt and all tokens that the client has.
That is exact as long as D's sampling needs nothing but those tokens, or restores what else it
needs. What it cannot restore is a `resume_obstacle`: such a stream ends with `stream_interrupted`
instead of going on with other tokens. Whether a request may be what kills workers is for the router
to say, which knows what else was on them; it refuses the next attempt then.
"""

from __future__ import annotations

import msgspec

from common.errors import BatonError, Code
from common.messages import Fleet, Sampling
from common.resume import lacking

#: Errors of an attempt after which another worker may continue the request.
MOVABLE = frozenset(
    {
        Code.WORKER_LOST,
        Code.ADAPTER_NOT_HELD,
        Code.ENGINE_FAILED,
        Code.KV_TRANSFER_FAILED,
        Code.PREEMPTED,
        Code.MOVED,
        Code.STREAM_INTERRUPTED,
        Code.DRAINING,
    }
)
#: Those with which a decode worker that lives ends a stream and keeps its KV.
KEPT = frozenset({Code.MOVED, Code.DRAINING})
ATTEMPTS_MAX = 16
#: A request that D declined before it began is submitted again up to this attempt.
PLACEMENTS_MAX = 3


def resume_obstacle(sampling: Sampling, emitted: int, fleet: Fleet | None) -> str:
    """What another D would lack to continue exactly after `emitted` tokens; empty when it can."""
    return lacking(sampling, restores=fleet is not None and fleet.restores) if emitted else ""


def remaining_sampling(sampling: Sampling, emitted: int) -> Sampling:
    """The sampling of an attempt that continues after `emitted` tokens."""
    if not emitted:
        return sampling
    return msgspec.structs.replace(
        sampling,
        max_tokens=sampling.max_tokens - emitted,
        min_tokens=max(0, sampling.min_tokens - emitted),
        prompt_logprobs=None,
    )


def interrupted(error: BatonError, emitted: int, obstacle: str) -> BatonError:
    """What the client gets when no more tokens can come. After the first token that is
    `stream_interrupted`, whatever the cause. `obstacle`: see `resume_obstacle`."""
    sentence = error.message
    if obstacle:
        sentence += f"; it cannot go on elsewhere without {obstacle}"
    return BatonError(
        Code.STREAM_INTERRUPTED if emitted else error.code,
        sentence,
        retry_after_ms=error.retry_after_ms,
    )
