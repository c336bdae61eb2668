"""What becomes of a request whose worker was lost: it goes on elsewhere, or ends in a clear error.

A stream goes on as a new attempt whose prompt is the old one plus all that the client has. That is
exact as long as D's sampling needs nothing but those tokens. What it needs beyond them, and what a
new D would get wrong, is an `obstacle`; such a stream ends with `stream_interrupted` instead of
going on differently. A request that was on `worker_deaths_max` workers when they died is not given
a further one: it may be what kills them.
"""

from __future__ import annotations

import msgspec

from common.errors import BatonError, Code
from common.messages import Sampling

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


def obstacle(sampling: Sampling, emitted: int) -> str:
    """Why another D cannot go on exactly after `emitted` tokens; empty when it can."""
    if not emitted:
        return ""
    if sampling.seed is not None and sampling.temperature > 0:
        return "its seed's random state"
    if sampling.presence_penalty or sampling.frequency_penalty:
        return "its presence and frequency penalties, which count generated tokens only"
    if sampling.structured is not None:
        return "how far it is in its schema, regex or grammar"
    if sampling.thinking_token_budget is not None:
        return "how much of its thinking budget is used"
    if sampling.bad_words:
        return "its bad words, which are matched in generated tokens only"
    return ""


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
