"""The estimates as the plain numbers that placement compares for one attempt."""

from __future__ import annotations

from services.router.estimates.estimates import Estimates
from services.router.placement.types import Rates
from services.router.records.attempt import Attempt

SAMPLES_MIN = 8
BATCH = 16


def rates(estimates: Estimates, attempt: Attempt) -> Rates:
    """The rates for a prompt of this length, tenant and class."""
    tokens = attempt.request.prompt_tokens
    step = estimates.step_seconds(1)
    slower = (estimates.step_seconds(BATCH) - step) / (BATCH - 1)
    bandwidth = estimates.bandwidth
    samples = min(estimates.prefill.count, estimates.handoffs)
    return Rates(
        prefill_tokens_per_s=estimates.prefill.tokens_per_s(tokens),
        local_tokens_per_s=estimates.local.tokens_per_s(tokens),
        kv_bytes_per_s=bandwidth.bytes_per_s(),
        pair_bytes_per_s=bandwidth.bytes_per_s if len(bandwidth) else None,
        handoff_s=estimates.handoff_latency_s(),
        step_s=step,
        step_s_per_seq=max(0.0, slower),
        pull_s=estimates.pull_latency_s(),
        out_tokens=attempt.output_tokens,
        measured=samples >= SAMPLES_MIN,
    )
