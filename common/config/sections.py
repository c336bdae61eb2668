"""The sections of the fleet file, as frozen structs: every key, its unit in its name, its default.

How the file is read, merged and checked is in `reading.py`. A key that one section's docstring does
not explain explains itself by its name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from common.config.admission import AdmissionConfig
from common.config.base import NAME_PATTERN, Count, Milliseconds, Port, Positive, Section
from common.config.degradation import DegradationConfig
from common.config.liveness import LivenessConfig
from common.config.observe import PricesConfig, TimelineConfig
from common.config.request_limits import RequestLimits
from common.config.security import SecurityConfig
from common.errors import ConfigError
from common.messages import Role

Mode = Literal["disaggregated", "replicated", "single"]
RemotePrefill = Literal["auto", "always", "never"]


class FleetConfig(Section, frozen=True):
    """`run_dir`: sockets and state of this host's daemons, mode 0750. `drain_ms`: how long a daemon
    that was told to stop lets its work finish."""

    run_dir: str = "/run/baton"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    drain_ms: Milliseconds = 30_000.0


class ModelConfig(Section, frozen=True):
    """`path`: a Hugging Face folder or id; `baton-tiny` is the embedded model. `name`: what clients
    call it (default: the path's last part). `max_model_len`: tokens, 0 = the model's own.
    `tool_parser`, `reasoning_parser`: vLLM's names of them; empty = the model's text is not read
    for tool calls that it was not forced to make, or for reasoning."""

    path: str = "baton-tiny"
    name: str = ""
    max_model_len: Annotated[int, Meta(ge=0)] = 0
    tool_parser: str = ""
    reasoning_parser: str = ""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"

    @property
    def served_name(self) -> str:
        return self.name or self.path.rstrip("/").rsplit("/", 1)[-1]


class SimConfig(Section, frozen=True):
    """Timing of the simulated engine. A prefill of n tokens takes n / prefill_tokens_per_s; a
    decode step takes decode_step_ms + decode_step_ms_per_seq x batch."""

    prefill_tokens_per_s: Positive = 20_000.0
    decode_step_ms: Milliseconds = 10.0
    decode_step_ms_per_seq: Milliseconds = 0.0
    kv_blocks: Count = 2048
    kv_block_bytes: Count = 65_536


class EngineConfig(Section, frozen=True):
    """`block_tokens`: 0 = engine's own (128 on CPU). `kv_cache_mib`: 0 = engine's own choice.
    `threads`: OpenMP threads, 0 = cores shared evenly. `args`: further vLLM engine arguments.
    `kv_events`: the engine tells what its prefix cache holds, so that the router need not guess.
    `hang_ms`: an engine that has work and makes no step for so long, and for 20 of its own p99
    steps, counts as dead: its daemon ends, and is started anew."""

    kind: Literal["vllm", "sim"] = "vllm"
    block_tokens: Annotated[int, Meta(ge=0)] = 0
    kv_cache_mib: Annotated[int, Meta(ge=0)] = 0
    max_num_seqs: Count = 64
    max_num_batched_tokens: Count = 2048
    threads: Annotated[int, Meta(ge=0)] = 0
    prefix_caching: bool = True
    kv_events: bool = True
    hang_ms: Positive = 60_000.0
    args: dict[str, Any] = field(default_factory=dict)
    sim: SimConfig = SimConfig()

    @property
    def tells_prefixes(self) -> bool:
        return self.kv_events and self.prefix_caching


class KvConfig(Section, frozen=True):
    """The data plane of one worker. `host`/`port`: where its UCX listener binds (0 = any free
    port; tensor parallel rank i takes port + i). `transports`: UCX_TLS
    (`rc,cuda_copy,cuda_ipc,tcp,sm,self` with RDMA and GPUs). `interfaces`: UCX_NET_DEVICES, empty =
    all. `rails`: interfaces one message may be split over. `baton doctor` tells what UCX makes of
    these three. `message_bytes`: payload of one message at most. `staging_mib`: bound of staging
    memory on each side, made as it is needed: per 4 MiB of it a D can wait for one handoff over a
    wire. `lease_ms`: how long P holds blocks that nobody took. `load_timeout_ms`: how long D waits
    for a handoff before it computes the prompt itself. `answer_ms`: a P that D waits for, or a D
    that P serves, is asked when it says nothing; without an answer in this time the connection
    counts as lost. `layer_groups`: into how many messages the layers of a run of
    blocks are cut, so that the first layers leave while the later ones are computed; 1 = blocks
    leave when all layers are done; 0 = as many as leave each a MiB, eight at most, where the engine
    tells of layers.
    `compression`: KV on the wire as fp8 (e4m3, a scale for each head's K and V of a block), which
    is lossy: `fp8` always, `auto` where P measures that it pays; both workers of a pair must ask
    for it, P's word decides between the two. `exact`: this worker's KV is never compressed, sent or
    received, whatever `compression` says; it pairs with the same workers."""

    host: str = "127.0.0.1"
    port: Port = 0
    transports: str = "tcp,sm,self"
    interfaces: str = ""
    rails: Annotated[int, Meta(ge=1, le=8)] = 1
    message_bytes: Annotated[int, Meta(ge=4096)] = 4 << 20
    staging_mib: Count = 256
    lease_ms: Annotated[float, Meta(ge=100)] = 30_000.0
    load_timeout_ms: Annotated[float, Meta(ge=100)] = 60_000.0
    answer_ms: Annotated[float, Meta(ge=50)] = 750.0
    retries: Annotated[int, Meta(ge=0, le=10)] = 3
    layer_groups: Annotated[int, Meta(ge=0, le=64)] = 0
    compression: Literal["none", "fp8", "auto"] = "none"
    exact: bool = False

    def by_block(self) -> KvConfig:
        """For an engine that says of whole blocks only that they are done."""
        return self if self.layer_groups else msgspec.structs.replace(self, layer_groups=1)


class GatewayConfig(Section, frozen=True):
    """`stream_bind`: ZMQ endpoint on which decode workers deliver tokens; empty = an ipc socket in
    run_dir. `router_wait_ms`: how long new work is held while no router answers. `keys_file`: who
    may ask (`baton keys`); without one, `host` must be a loopback address unless `allow_anonymous`.
    `tls_*_file`: PEM; both or none. `header_ms_max`: for a request's whole head; `body_ms_max`: for
    its body after that; `idle_ms_max`: a kept connection between requests. `header_bytes_max`:
    request line and all headers. `connections_per_ip_max`: 0 = no limit, as behind a proxy.
    `recovery`: a stream whose worker is lost goes on elsewhere; it waits for a place at most
    `recovery_ms`, and not after `worker_deaths_max` workers died under it.
    `router_silence_ms`: a router that says nothing for so long is left for another that speaks.
    `processes`: gateways g0, g1, ... that `baton up` starts on the one port; the limits here are
    for each.
    `resume_ms`: how long a stream asked for with x-resumable is kept without a client;
    `resumable_streams_max`: how many are kept, `resumable_bytes_max`: of each stream's events.
    `text`: `auto` serves plain text at once and loads vLLM's text classes when a request first
    needs tools, schemas, logprobs and the like (some 8 s, 600 MiB); `vllm` loads them before it is
    ready; `light` refuses such requests by name."""

    host: str = "127.0.0.1"
    port: Port = 8000
    processes: Annotated[int, Meta(ge=1, le=64)] = 1
    keys_file: str = ""
    allow_anonymous: bool = False
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    connections_max: Count = 8192
    connections_per_ip_max: Annotated[int, Meta(ge=0)] = 2048
    header_bytes_max: Annotated[int, Meta(ge=1024)] = 32 << 10
    header_ms_max: Positive = 10_000.0
    body_ms_max: Positive = 30_000.0
    idle_ms_max: Positive = 75_000.0
    stream_bind: str = ""
    text: Literal["auto", "vllm", "light"] = "auto"
    body_bytes_max: Count = 8 << 20
    max_streams: Count = 4096
    router_wait_ms: Milliseconds = 5_000.0
    recovery: bool = True
    recovery_ms: Milliseconds = 45_000.0
    worker_deaths_max: Count = 2
    router_silence_ms: Annotated[float, Meta(ge=400)] = 1_000.0
    default_max_tokens: Annotated[int, Meta(ge=0)] = 0
    slow_client_bytes_max: Count = 1 << 20
    slow_client_ms_max: Milliseconds = 10_000.0
    resume_ms: Milliseconds = 60_000.0
    resumable_streams_max: Count = 256
    resumable_bytes_max: Count = 1 << 20
    limits: RequestLimits = RequestLimits()


class RouterConfig(Section, frozen=True):
    """`control`: ZMQ endpoint; empty = an ipc socket in run_dir. `max_active`: requests placed at
    once; 0 = sum of the decode workers' max_num_seqs. `max_queue`: requests waiting.
    `ttft_slo_ms`: in which the first token of interactive and standard requests should come; what
    cannot is refused at once; 0 = only a request's own deadline counts.

    `mode`: `disaggregated` pairs prefill and decode workers; in `replicated` and `single` all (or
    the one) are decode workers that compute prompts themselves. `policy`: who among the workers
    with room is taken. `remote_prefill`: `auto` = where measured curves say that it pays.
    `standby`: further routers by name, each with its control endpoint, empty = an ipc socket in
    run_dir; workers report to all, a gateway uses the first that answers."""

    control: str = ""
    max_active: Annotated[int, Meta(ge=0)] = 0
    max_queue: Annotated[int, Meta(ge=0)] = 1024
    ttft_slo_ms: Milliseconds = 0.0
    queue_bytes_max: Count = 256 << 20
    kv_grant_max: Annotated[float, Meta(gt=0, le=1)] = 0.95
    worker_timeout_ms: Annotated[float, Meta(ge=200)] = 3_000.0
    history: Count = 1024
    admission: AdmissionConfig = AdmissionConfig()
    mode: Mode = "disaggregated"
    policy: Literal[
        "cost", "least_loaded", "prefix_affinity", "round_robin", "session_affinity"
    ] = "cost"
    liveness: LivenessConfig = LivenessConfig()
    degradation: DegradationConfig = DegradationConfig()
    standby: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], str] = field(default_factory=dict)
    remote_prefill: RemotePrefill = "auto"


class HealthConfig(Section, frozen=True):
    """`host`, `port`: of metrics and dashboard. `keys_file`: who may read them (`baton keys`; not
    the gateway's file, or every tenant may); without one, `host` must be a loopback address unless
    `allow_anonymous`. `interval_ms`: between two rounds of probes. `alert_command`,
    `alert_webhook`: told when this host's verdict changes, a JSON object on standard input or as
    the body of a POST; empty = nobody. `canary_interval_s`: how often each worker's engine is given
    a tiny request, 0 = never; `canary_ms_max`: in which it must be answered."""

    host: str = "127.0.0.1"
    port: Port = 9400
    keys_file: str = ""
    allow_anonymous: bool = False
    interval_ms: Annotated[float, Meta(ge=100)] = 2_000.0
    alert_command: str = ""
    alert_webhook: str = ""
    canary_interval_s: Annotated[float, Meta(ge=0)] = 30.0
    canary_ms_max: Annotated[float, Meta(ge=100, le=60_000)] = 5_000.0


class WorkerConfig(Section, frozen=True):
    """One prefill or decode worker, its engine and kv tables already merged over the fleet's."""

    engine: EngineConfig = EngineConfig()
    kv: KvConfig = KvConfig()


class Config(Section, frozen=True):
    fleet: FleetConfig = FleetConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    kv: KvConfig = KvConfig()
    gateway: GatewayConfig = GatewayConfig()
    router: RouterConfig = RouterConfig()
    health: HealthConfig = HealthConfig()
    security: SecurityConfig = SecurityConfig()
    timeline: TimelineConfig = TimelineConfig()
    prices: PricesConfig = PricesConfig()
    prefill: dict[str, WorkerConfig] = field(default_factory=dict)
    decode: dict[str, WorkerConfig] = field(default_factory=dict)

    def worker(self, role: Role, name: str) -> WorkerConfig:
        """Raises ConfigError when the file has no such worker."""
        table = self.prefill if role is Role.PREFILL else self.decode
        if name not in table:
            known = ", ".join(table) or "none"
            raise ConfigError(f"{role}.{name}", f"no such worker in the file (there: {known})")
        return table[name]
