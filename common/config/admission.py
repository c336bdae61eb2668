"""`[router.admission]`: every constant of admission control, with its unit and its default."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Count, Milliseconds, Positive, Section

Share = Annotated[float, Meta(ge=0, lt=1)]


class AdmissionConfig(Section, frozen=True):
    """Constants of admission: what the router assumes before it has measured, when it refuses a
    request, when it tells the client to come back, and how the queue is shared.

    The router predicts the time to the first token (TTFT) of each request and refuses at once what
    cannot meet its limit. Gates on decode backlog, lost capacity and KV pressure stand behind the
    prediction for what it does not see."""

    estimate_memory: Annotated[int, Meta(ge=2)] = 64
    """Samples that an estimate remembers: each new sample has a weight of one in this many."""
    prior_prefill_tokens_per_s: Positive = 8_000.0
    """Prompt tokens per second that one worker is assumed to compute until some were measured."""
    prior_decode_step_ms: Positive = 25.0
    """Duration of one decode step of a batch, assumed until steps were measured."""
    prior_output_tokens: Count = 512
    """Tokens that a request is assumed to generate if it allows more, until some have ended."""
    prior_pair_bytes_per_s: Positive = 1e9
    """Bytes of KV per second that a pair of workers is assumed to transfer until it has handed
    some over."""
    output_cost: Annotated[float, Meta(ge=0)] = 2.0
    """Cost of one token to generate, in prompt tokens. The cost of a request is its prompt tokens
    to compute plus this times its tokens to generate; key limits and fairness count in it."""
    slo_share: Annotated[float, Meta(gt=0, le=1)] = 0.85
    """Share of its SLO or deadline that the predicted TTFT of an admitted request may use. The rest
    is a margin for errors of the prediction."""
    trust_samples: Count = 8
    """Prompts that must have been measured before the router refuses by its prediction.
    Until then a request with nothing ahead of it is admitted in order to measure."""
    probe_ms: Milliseconds = 5_000.0
    """Time without a measured prompt after which a request with nothing ahead of it is admitted in
    order to measure again, whatever the prediction says."""
    decode_queue_per_worker: Count = 3
    """Computed prompts with an overdue first token, per decode worker, above which nothing is
    admitted."""
    decode_queue_overdue_ms: Milliseconds = 1_000.0
    """Time after a prompt was computed from which its first token counts as overdue."""
    capacity_full: Annotated[float, Meta(gt=0, le=1)] = 0.8
    """Healthy share of the known decode slots below which admission shrinks in proportion while
    requests wait. Losing one worker of five does not refuse anybody; 0.6 suits a fleet of which
    two workers of three are enough."""
    capacity_memory_ms: Milliseconds = 60_000.0
    """Time for which the slots of a lost decode worker still count as known."""
    thinning_debt: Annotated[float, Meta(ge=1)] = 8.0
    """Refusals that must be due, because no request of a lower class came to take them, before
    load shedding refuses a request of the next higher class."""
    kv_yield: Annotated[float, Meta(gt=0, le=1)] = 0.85
    """Share of the decode workers' KV in use above which requests of the lowest class yield to
    higher ones."""
    kv_refuse: Annotated[float, Meta(gt=0, le=1)] = 0.95
    """Share of the decode workers' KV in use above which nothing is admitted. The router promises
    no more than this either (`router.kv_grant_max`)."""
    retry_share: Share = 0.1
    """Attempts after the first, as a share of all requests, so that failures do not multiply the
    load."""
    retry_burst: Annotated[float, Meta(ge=1)] = 32.0
    """Attempts after the first that may come at once. It is never less than what the largest decode
    worker runs, since the loss of one worker must be recoverable."""
    retry_per_min: Annotated[float, Meta(ge=0)] = 30.0
    """Attempts after the first per minute that are always allowed, so that the streams of a quiet
    fleet recover too."""
    retry_after_min_ms: Annotated[float, Meta(ge=1)] = 1_000.0
    """Shortest `Retry-After`. The header has whole seconds."""
    retry_after_max_ms: Annotated[float, Meta(ge=1)] = 60_000.0
    """Longest `Retry-After`, however slowly the fleet drains."""
    retry_after_jitter: Share = 0.2
    """Share of a `Retry-After` that is added to it at most, so that clients refused together do not
    return together."""
    return_early_ms: Milliseconds = 250.0
    """How early a refused client may return and still be let in before newcomers."""
    return_late_ms: Milliseconds = 250.0
    """How long after its time capacity is kept for a refused client that has not returned."""
    return_grace_ms: Milliseconds = 2_500.0
    """How late a refused client may return and still be let in before newcomers."""
    return_horizon_ms: Milliseconds = 1_000.0
    """How far ahead the refused clients that will likely return count when a newcomer is judged."""
    queue_ms_max: Milliseconds = 240_000.0
    """How long a request waits in the queue at most; it is refused then. An SLO or a deadline may
    refuse it sooner. Less than `gateway.token_wait_ms_max`, so that the router's reason is told."""
    no_decode_wait_ms: Milliseconds = 5_000.0
    """How long a request waits while the fleet has no decode worker."""
    slow_start_ms: Milliseconds = 10_000.0
    """Time over which a worker that came back gets all of its slots again."""
    slow_start_share: Annotated[float, Meta(gt=0, le=1)] = 0.25
    """Share of its slots that a worker that came back gets at once."""
    keys_max: Count = 10_000
    """API keys whose use is accounted for, which bounds the table. A key file has no more."""
    key_burst_ms: Annotated[float, Meta(gt=0)] = 60_000.0
    """Time over which a key may save up its rate and then use it at once. Limits are per minute, so
    a key may use a minute's worth."""
    class_floor: Share = 0.05
    """Share of the service that each lower priority class gets while it waits, so that none
    starves."""
    batch_reserve: Share = 0.08
    """Share of the slots of each decode worker that new requests of the lowest class leave free, so
    that one of a higher class begins at once. Those of the lowest class that begin together end
    together; so one joins only where another request has ended, or after its part of the time that
    an answer takes, where fewer requests than the reserve have no first token yet, and where no
    prompt is being computed by the worker that would compute its own. Its streams lengthen each
    step of an engine; a larger share leaves fewer of them. None of this holds where the class has
    waited long enough to be owed service (`class_floor`)."""
    queue_reserve: Share = 0.1
    """Last share of the queue's count and bytes, kept for tenants below their fair share and never
    for the batch class, so that a flood of one tenant does not shut out the others."""
    look_past: Count = 16
    """Waiting requests that are tried while the first ones do not fit, so that one large prompt
    does not block small ones."""
    passed_max: Count = 64
    """How often a waiting request may be passed by smaller ones, so that it does not starve."""
