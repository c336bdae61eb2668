"""`[router]`: placement, queue and the router's own endpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from common.config.admission import AdmissionConfig
from common.config.balance import BalanceConfig, ScaleConfig
from common.config.base import NAME_PATTERN, Count, Milliseconds, Section
from common.config.degradation import DegradationConfig
from common.config.liveness import LivenessConfig

Mode = Literal["disaggregated", "replicated", "single"]
RemotePrefill = Literal["auto", "always", "never"]


class RebalanceConfig(Section, frozen=True):
    """The controller of running streams. Every second it asks for each model whether one stream
    would better go on at another decode worker; `baton ctl balance` shows what it found, and why
    it did nothing."""

    mode: Literal["off", "dry", "on"] = "off"
    """`off` looks at nothing; `dry` says what it would do; `on` moves streams, one at a time."""
    gain_min: Annotated[float, Meta(ge=1, le=100)] = 2.0
    """How many times its cost a move has to gain. The gain is the time that the head of the queue
    and the streams of both workers save; the cost is the pause of the stream that moves."""
    cooldown_ms: Milliseconds = 10_000.0
    """Time for which two workers that a stream moved between are left alone, in either
    direction. The stream itself is not moved again for as long as after any move."""


class RouterConfig(Section, frozen=True):
    """How the router places requests, and how much waits in it."""

    control: str = ""
    """ZeroMQ endpoint that gateways and workers connect to; empty is an ipc socket in `run_dir`. A
    fleet over several hosts names `tcp://ADDRESS:PORT`."""
    max_active: Annotated[int, Meta(ge=0)] = 0
    """Requests of a model placed at once; 0 is the sum of its decode workers' `max_num_seqs`."""
    max_queue: Annotated[int, Meta(ge=0)] = 1024
    """Requests of a model that wait to be placed."""
    ttft_slo_ms: Milliseconds = 0.0
    """Time in which the first token of interactive and standard requests should come; requests for
    which it cannot are refused at once. 0 sets no SLO, and only a request's own deadline counts."""
    itl_slo_ms: Milliseconds = 0.0
    """Time between two tokens that streams of interactive and standard requests should have. A
    decode worker has no more requests than it serves so, by what its steps were measured to take;
    one that is too slow for a single stream gets requests of class batch only. 0: no limit, and all
    slots are used."""
    queue_bytes_max: Count = 256 << 20
    """Bytes of the requests of a model that wait."""
    kv_grant_max: Annotated[float, Meta(gt=0, le=1)] = 0.95
    """Share of a decode worker's KV tokens that may be promised to requests; the rest is a
    reserve."""
    slots_ahead_max: Annotated[float, Meta(ge=0, le=1)] = 0.25
    """Requests beyond its slots that a decode worker may have, as a share of its `max_num_seqs`.
    Where no slot is free, a prompt begins before one is, if enough streams are expected to end by
    the time its KV is there. 0: it waits until a slot is free."""
    worker_timeout_ms: Annotated[float, Meta(ge=200)] = 3_000.0
    """Silence after which a worker is ejected. Workers beat every 500 ms."""
    history: Count = 1024
    """Ended requests that `baton ctl explain` can still explain."""
    admission: AdmissionConfig = AdmissionConfig()
    mode: Mode = "disaggregated"
    """Which workers the fleet has: `disaggregated` pairs prefill and decode workers; in
    `replicated` and `single` all, or the one, are decode workers that compute prompts
    themselves."""
    policy: Literal[
        "cost", "least_loaded", "prefix_affinity", "round_robin", "session_affinity"
    ] = "cost"
    """Which of the workers with room is chosen. `cost` takes the pair with the lowest predicted
    latency; `baton ctl policy` switches it in a running fleet."""
    liveness: LivenessConfig = LivenessConfig()
    degradation: DegradationConfig = DegradationConfig()
    balance: BalanceConfig = BalanceConfig()
    rebalance: RebalanceConfig = RebalanceConfig()
    scale: ScaleConfig = ScaleConfig()
    standby: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], str] = field(default_factory=dict)
    """Further routers by name, each with its control endpoint; an empty one is an ipc socket in
    `run_dir`. Workers report to all routers; a gateway uses the first that answers."""
    warm_idle_ms: Milliseconds = 60_000.0
    """Time without a request after which a warm worker that was woken sleeps again."""
    prefetch_queued: Annotated[int, Meta(ge=0, le=64)] = 5
    """How many of the requests that are next in the queue of a model are prefetched: the worker
    that will probably compute the prompt brings its beginning to the memory of its store meanwhile,
    out of another worker's store or from its own disk. It needs workers with `[kv.store]`; 0 turns
    it off."""
    remote_prefill: RemotePrefill = "auto"
    """Whether a prompt is computed on a prefill worker: `auto` where measured rates predict a lower
    latency, or `always`, or `never`."""
