"""`[router.admission]`: every constant of admission, with its unit and default."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Count, Positive, Section


class AdmissionConfig(Section, frozen=True):
    """What the router believes before it has measured, and how it forgets.

    `estimate_memory`: an estimate forgets by 1/this with each sample. The priors hold until the
    first samples: `prior_prefill_tokens_per_s` of one worker, `prior_decode_step_ms` of a batch,
    `prior_output_tokens` of a request that may make more, `prior_pair_bytes_per_s` of a handoff.
    """

    estimate_memory: Annotated[int, Meta(ge=2)] = 64
    prior_prefill_tokens_per_s: Positive = 8_000.0
    prior_decode_step_ms: Positive = 25.0
    prior_output_tokens: Count = 512
    prior_pair_bytes_per_s: Positive = 1e9
