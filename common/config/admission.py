"""`[router.admission]`: every constant of admission, with its unit and default."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Count, Milliseconds, Positive, Section

Share = Annotated[float, Meta(ge=0, lt=1)]


class AdmissionConfig(Section, frozen=True):
    """What the router believes before it has measured, and how it forgets.

    `estimate_memory`: an estimate forgets by 1/this with each sample. The priors hold until the
    first samples: `prior_prefill_tokens_per_s` of one worker, `prior_decode_step_ms` of a batch,
    `prior_output_tokens` of a request that may make more, `prior_pair_bytes_per_s` of a handoff.

    Cost: prompt tokens to compute plus `output_cost` times the tokens to make. A request is
    admitted if its predicted TTFT is at most `slo_share` of its SLO or deadline; while fewer than
    `trust_samples` prompts were measured, or none for `probe_ms`, one with nothing ahead is
    admitted to measure.

    Gates: no admission while more than `decode_queue_per_worker` x decode workers computed prompts
    wait longer than `decode_queue_overdue_ms` for their first token; admission in proportion while
    less than `capacity_full` of the decode slots seen within `capacity_memory_ms` is healthy and
    work waits, each class only when `thinning_debt` refusals are due that no lower one came to
    take; the lowest class yields to others above `kv_yield` of KV in use, all above
    `kv_refuse`; nothing waits longer than `no_decode_wait_ms` for a first decode worker.

    Retries: attempts after the first are at most `retry_share` of all requests, `retry_burst` of
    them at once, and `retry_per_min` always. `Retry-After` follows the measured drain rate between
    `retry_after_min_ms` and `retry_after_max_ms`, and up to `retry_after_jitter` of it is added;
    who comes at most `return_early_ms` before it or `return_grace_ms` after it is let in before
    newcomers. These are judged as if those who are due within `return_horizon_ms`, or were no more
    than `return_late_ms` ago, were ahead of them, as far as they usually come. A worker that comes
    back starts with `slow_start_share` of its slots and has all after `slow_start_ms`.

    Keys: a bucket holds `key_burst_ms` worth of its rate; `keys_max` accounts are kept.

    The queue: each lower class that waits gets `class_floor` of what is served; the last
    `queue_reserve` of its count and bytes is for tenants below their share, and not for batch.
    While one does not fit, `look_past` - 1 behind it are tried; it is passed by at most
    `passed_max` times.
    """

    estimate_memory: Annotated[int, Meta(ge=2)] = 64
    prior_prefill_tokens_per_s: Positive = 8_000.0
    prior_decode_step_ms: Positive = 25.0
    prior_output_tokens: Count = 512
    prior_pair_bytes_per_s: Positive = 1e9
    output_cost: Annotated[float, Meta(ge=0)] = 2.0
    slo_share: Annotated[float, Meta(gt=0, le=1)] = 0.85
    trust_samples: Count = 8
    probe_ms: Milliseconds = 5_000.0
    decode_queue_per_worker: Count = 3
    decode_queue_overdue_ms: Milliseconds = 1_000.0
    capacity_full: Annotated[float, Meta(gt=0, le=1)] = 0.8
    capacity_memory_ms: Milliseconds = 60_000.0
    thinning_debt: Annotated[float, Meta(ge=1)] = 8.0
    kv_yield: Annotated[float, Meta(gt=0, le=1)] = 0.85
    kv_refuse: Annotated[float, Meta(gt=0, le=1)] = 0.95
    retry_share: Share = 0.1
    retry_burst: Annotated[float, Meta(ge=1)] = 32.0
    retry_per_min: Annotated[float, Meta(ge=0)] = 30.0
    retry_after_min_ms: Annotated[float, Meta(ge=1)] = 1_000.0
    retry_after_max_ms: Annotated[float, Meta(ge=1)] = 60_000.0
    retry_after_jitter: Share = 0.2
    return_early_ms: Milliseconds = 250.0
    return_late_ms: Milliseconds = 250.0
    return_grace_ms: Milliseconds = 2_500.0
    return_horizon_ms: Milliseconds = 1_000.0
    no_decode_wait_ms: Milliseconds = 5_000.0
    slow_start_ms: Milliseconds = 10_000.0
    slow_start_share: Annotated[float, Meta(gt=0, le=1)] = 0.25
    keys_max: Count = 10_000
    key_burst_ms: Annotated[float, Meta(gt=0)] = 60_000.0
    class_floor: Share = 0.05
    queue_reserve: Share = 0.1
    look_past: Count = 16
    passed_max: Count = 64
