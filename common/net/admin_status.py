"""The answer of the admin verb `status`: the router builds it, and its clients decode it.

Fields with a default came later; an answer of an older router lacks them.
"""

from __future__ import annotations

import msgspec


class Alarm(msgspec.Struct, frozen=True):
    """A standing alarm: something that degrades the fleet while every answer stays right."""

    cause: str
    #: Seconds since it was raised.
    since_s: float
    sentence: str


class Totals(msgspec.Struct, kw_only=True):
    """Attempts since the router started."""

    #: New attempts that gateways submitted, the refused ones included.
    submitted: int = 0
    #: Given to workers by this router.
    placed: int = 0
    #: Of those placed, the ones without a prefill worker.
    placed_local: int = 0
    #: Of those placed, the ones whose decode worker had no free slot yet.
    placed_ahead: int = 0
    #: Of those placed, the ones whose KV comes from the decode worker that the stream left.
    moved: int = 0
    #: Found on a worker; another router had placed them, or this one before a restart.
    adopted: int = 0
    #: Served to their last token.
    ended: int = 0
    #: Lost with a worker, or ended by an error of a worker.
    failed: int = 0
    #: Given up by their gateway or by an operator.
    cancelled: int = 0


class LearnedEstimates(msgspec.Struct, frozen=True, kw_only=True):
    """What the router has learned from reports."""

    #: Prefill workers: tokens per second, by the smallest prompt length of each row.
    prefill_tokens_per_s: dict[str, float] = {}
    #: The same for decode workers that computed prompts themselves.
    local_prefill_tokens_per_s: dict[str, float] = {}
    #: Milliseconds of a decode step, by the smallest batch of each row.
    decode_step_ms: dict[str, float] = {}
    #: 90th percentile of the answer's tokens, by `priority/smallest max_tokens`.
    output_tokens_p90: dict[str, int] = {}
    #: Bytes per second of the most recently used pairs, by `P>D`.
    pair_bytes_per_s: dict[str, float] = {}
    #: Milliseconds from P's end to D's first token, without any exposed transfer.
    handoff_latency_ms: float = msgspec.field(default=0.0, name="handoff_tail_ms")
    #: Mean milliseconds that a request stays on a decode worker.
    decode_residence_ms: float = msgspec.field(default=0.0, name="stay_ms")


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one model is served."""

    model: str
    ready: bool
    #: Why it is not ready; empty when it is.
    reason: str
    max_model_len: int
    #: Ready workers that do the work of each role; `mixed_ready` do that of both, and count twice.
    prefill_ready: int
    decode_ready: int
    #: Requests on workers, and how many there may be.
    active: int
    active_max: int
    #: Requests in the queue, and their bytes.
    queued: int
    queued_bytes: int
    #: Requests that end per second; None = not measured yet.
    drained_per_s: float | None
    #: Share of the decode workers' KV that is in use.
    kv_used: float
    #: Why nothing new is admitted; empty = it is.
    closed: str
    estimates: LearnedEstimates = LearnedEstimates()
    #: Decode workers that sleep until they are needed.
    decode_warm: int = 0
    #: Ready mixed workers.
    mixed_ready: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the fleet can serve, how full it is, and what went wrong."""

    #: Whether any model is.
    ready: bool
    #: Why it is not ready; empty when it is.
    reason: str
    #: The router's name.
    router: str
    incarnation: str
    uptime_s: float
    #: The router is stopping and admits nothing new.
    draining: bool
    #: The placement policy in force.
    policy: str
    mode: str
    remote_prefill: str
    #: The models that are served, with commas.
    model: str
    max_model_len: int
    #: Connected gateways.
    gateways: int
    #: Ready workers that do the work of each role; `mixed_ready` do that of both, and count twice.
    prefill_ready: int
    decode_ready: int
    #: Workers about which a health daemon has a bad verdict.
    bad_health_verdicts: int = msgspec.field(default=0, name="workers_doubted")
    #: Requests on workers, and how many there may be.
    active: int
    active_max: int
    #: Requests in the queue, their bytes, and the limits of both for each model.
    queued: int
    queued_max: int
    queued_bytes: int
    queued_bytes_max: int
    #: The TTFT that admission promises; 0 = none.
    ttft_slo_ms: float = 0.0
    #: Requests that end per second; None = not measured yet.
    drained_per_s: float | None
    #: Refused requests that were told when to come back, and the share of them that is expected.
    retry_reservations: int = 0
    retry_redeemed_share: float = 0.0
    #: Of the first model; `models` has those of each.
    estimates: LearnedEstimates = LearnedEstimates()
    #: Entries of the prefix index, summed over workers.
    prefix_hashes: int = 0
    #: Pairs of workers whose breaker is open or half-open.
    open_pairs: int = msgspec.field(default=0, name="pairs_resting")
    alarms: tuple[Alarm, ...] = ()
    #: A sentence for each daemon that keeps dying, by its name. The router does not know: `baton
    #: ctl` adds what the supervisor on its host says.
    flapping: dict[str, str] = {}
    totals: Totals
    #: Refused attempts by error code.
    refused: dict[str, int]
    #: Messages and frames that were dropped, by reason.
    dropped: dict[str, int]
    #: Each model, in the order of the fleet file.
    models: tuple[ModelStatus, ...] = ()
    #: Decode workers that sleep until their model needs them.
    decode_warm: int = 0
    #: Ready mixed workers.
    mixed_ready: int = 0
    #: Pools that are ready.
    pools_ready: int = 0
