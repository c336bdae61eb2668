"""Which sampling state a request would lose when it continues on another decode worker.

Its prompt there is the old prompt and all emitted tokens. Greedy, unseeded and stateless sampling
needs no more. An engine that restores state (`Capacity.restores`) also restores the counts of
output tokens and the position in a grammar and in a seed's random stream. Other state is lost.
"""

from __future__ import annotations

from common.messages import Sampling


def lacking(sampling: Sampling, *, restores: bool) -> str:
    """The state that a new worker would lack, as the end of the sentence "it cannot continue
    without ..."; empty if none. `restores` is the field of the new worker's `Capacity`."""
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
