"""What the estimators say, as the plain numbers that placement weighs for one request."""

from __future__ import annotations

from services.router.estimators.estimates import Estimates
from services.router.placement_types import Rates
from services.router.records import Try

SAMPLES_MIN = 8
BATCH = 16


def rates(estimates: Estimates, each: Try) -> Rates:
    """For a prompt of this length, of this tenant and class."""
    tokens = each.ask.prompt_tokens
    step = estimates.step_seconds(1)
    slower = (estimates.step_seconds(BATCH) - step) / (BATCH - 1)
    bandwidth = estimates.bandwidth
    seen = min(estimates.prefill.count, estimates.handoffs)
    return Rates(
        prefill_tokens_per_s=estimates.prefill.tokens_per_s(tokens),
        local_tokens_per_s=estimates.local.tokens_per_s(tokens),
        kv_bytes_per_s=bandwidth.bytes_per_s(),
        pair_bytes_per_s=bandwidth.bytes_per_s if len(bandwidth) else None,
        handoff_s=estimates.tail_seconds(),
        step_s=step,
        step_s_per_seq=max(0.0, slower),
        out_tokens=each.output_tokens,
        measured=seen >= SAMPLES_MIN,
    )
