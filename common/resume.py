"""What sampling knows beyond the tokens, when a request goes on at another decode worker.

Its prompt there is the old prompt and all that was emitted. Greedy, unseeded and stateless sampling
need no more. Counting output tokens, the place in a grammar and in a seed's stream are restored by
an engine that says so (`Capacity.restores`); the rest nobody restores.
"""

from __future__ import annotations

from common.messages import Sampling


def lacking(sampling: Sampling, *, restores: bool) -> str:
    """What a new worker would get wrong, in words for `it cannot go on without ...`; empty if
    nothing. `restores`: as its engine's `Capacity` says."""
    if sampling.thinking_token_budget is not None:
        return "how much of its thinking budget is used"
    if sampling.structured is not None and sampling.reasoning_ended is False:
        return "where its reasoning ended and its schema, regex or grammar began"
    if restores:
        return ""
    if sampling.seed is not None and sampling.temperature > 0:
        return "its seed's random state"
    if sampling.presence_penalty or sampling.frequency_penalty:
        return "its presence and frequency penalties, which count generated tokens only"
    if sampling.structured is not None:
        return "how far it is in its schema, regex or grammar"
    if sampling.bad_words:
        return "its bad words, which are matched in generated tokens only"
    return ""
