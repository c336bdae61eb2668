"""The fleet file as one frozen struct, and its smaller sections.

The larger sections have modules of their own. A string under a key is its documentation:
`reference.py` makes `docs/configuration.md` of these. A unit stands in the key's name. How the file
is read, merged and checked is in `reading.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from common.config.base import Milliseconds, Port, Section
from common.config.engine import EngineConfig, SpeculationConfig
from common.config.gateway import GatewayConfig
from common.config.kv import KvConfig
from common.config.observe import Phase, Price, PricesConfig, TimelineConfig
from common.config.request_limits import LimitsConfig
from common.config.router import RouterConfig
from common.config.security import SecurityConfig
from common.errors import ConfigError
from common.messages import Role


class FleetConfig(Section, frozen=True):
    """What all daemons of this host share."""

    run_dir: str = "/run/baton"
    """Folder of the daemons' sockets and state, with mode 0750. A unix socket's path has at most
    107 bytes, so it must be short."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged. A running daemon takes a change on SIGHUP."""
    drain_ms: Milliseconds = 30_000.0
    """How long a daemon that is stopped lets its requests finish."""


class ModelConfig(Section, frozen=True):
    """A model. A fleet with one has it in `[model]`; a fleet with several has `[models.NAME]` for
    each, with the same keys."""

    path: str = "baton-tiny"
    """Hugging Face folder or id; `baton-tiny` is the embedded model. Nothing is downloaded."""
    name: str = ""
    """Name by which clients ask for the model; empty is the last part of `path`, or the NAME of
    `[models.NAME]`."""
    aliases: tuple[str, ...] = ()
    """Further names by which clients may ask for it. Its answers have its `name`."""
    max_model_len: Annotated[int, Meta(ge=0)] = 0
    """Tokens of a prompt and its output together; 0 is the model's own limit."""
    tool_parser: str = ""
    """vLLM's name of the parser that reads tool calls in the model's text; empty reads only calls
    that a request forced. A name that the installed vLLM does not have is refused."""
    reasoning_parser: str = ""
    """vLLM's name of the parser that separates reasoning from the answer in every chat; empty does
    not. With it the gateway loads vLLM's text classes before it is ready."""
    chat_template: str = ""
    """File of the chat template that the gateway uses; empty is the model's own."""
    task: Literal["generate", "embed", "rerank", "classify"] = "generate"
    """What the model is for: `generate` makes text. The others are for pooling models, which
    compute one vector or score of each prompt. They have decode workers alone, which hand nothing
    over; the least loaded one computes a prompt."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Element type of weights and KV; `auto` is the one of the weights."""
    args: dict[str, Any] = field(default_factory=dict)
    """Engine arguments of this model's workers, over those of `[engine.args]`."""
    floor: Annotated[int, Meta(ge=0)] = 1
    """Decode workers of this model that stay awake, if as many are here; it matters where some are
    `warm`, or where `[router.scale]` stops workers. With 0 a model that nobody asks for has none:
    the first request waits until one has woken or was started."""
    text: Literal["", "auto", "vllm", "light"] = ""
    """When vLLM's text classes are loaded for this model; empty is `text` of `[gateway]`."""
    default_max_tokens: Annotated[int, Meta(ge=0)] = 0
    """Tokens that a chat request for this model may generate if it names no limit; 0 is
    `default_max_tokens` of `[gateway]`."""
    prices: dict[Phase, Price] = field(default_factory=dict)
    """Prices of a million tokens of this model, by `prefill`, `cached` and `decode`; of those that
    it does not name, the price of `[prices]` holds."""

    @property
    def pools(self) -> bool:
        """Whether it is a pooling model, which makes no text."""
        return self.task != "generate"

    @property
    def served_name(self) -> str:
        return self.name or self.path.rstrip("/").rsplit("/", 1)[-1]


class AdapterConfig(Section, frozen=True):
    """A LoRA adapter, which clients ask for by its NAME as they do for a model."""

    path: str
    """Folder with `adapter_config.json` and `adapter_model.safetensors`, the same on each worker's
    host."""
    base: str = ""
    """NAME of the model that it changes, where the file has `[models.NAME]`; empty is the only
    one."""


class HealthConfig(Section, frozen=True):
    """The health daemon of a host: probes, metrics and the dashboard."""

    host: str = "127.0.0.1"
    """Address of metrics and dashboard. Without `keys_file` it must be a loopback address, unless
    `allow_anonymous`."""
    port: Port = 9400
    """Port of metrics and dashboard; 0 takes any free one."""
    keys_file: str = ""
    """File of the keys that may read them (`baton keys`). With the gateway's file every tenant may;
    empty means no keys."""
    allow_anonymous: bool = False
    """Whether other hosts may read them without keys."""
    connections_max: Annotated[int, Meta(ge=1)] = 256
    """Open connections of clients; more are refused with 503."""
    interval_ms: Annotated[float, Meta(ge=100)] = 2_000.0
    """Time between two rounds of probes."""
    alert_command: str = ""
    """Command that gets a JSON object on standard input when this host's verdict changes; empty
    runs nothing."""
    alert_webhook: str = ""
    """URL that gets the same JSON object as the body of a POST; empty posts nothing."""
    canary_interval_s: Annotated[float, Meta(ge=0)] = 30.0
    """Seconds between two tiny requests that test a worker's engine; 0 tests none."""
    canary_ms_max: Annotated[float, Meta(ge=100, le=60_000)] = 5_000.0
    """Time in which such a request must be answered."""


class UpConfig(Section, frozen=True):
    """The supervisor of `baton up`."""

    give_up_s: Annotated[float, Meta(ge=1)] = 600.0
    """Seconds without any ready router, gateway or decode worker after which the whole run ends.
    Until then a daemon that dies is started again, after pauses of up to a minute."""
    watchdog_s: Annotated[float, Meta(ge=0)] = 30.0
    """Seconds without a beat of a daemon's event loop, or without a step of an engine that has
    work, after which the daemon is killed and started again; 0 never does that."""


class WorkerConfig(Section, frozen=True):
    """One prefill or decode worker. Its keys override those of `[engine]` and `[kv]` one by one,
    and those of a decode worker `[speculation]`, too."""

    model: str = ""
    """NAME of the model that it serves, where the file has `[models.NAME]`; empty is the only
    one."""
    state: Literal["active", "warm"] = "active"
    """A decode worker that is `warm` keeps its model loaded and sleeps, without KV, until its model
    needs it: its queue predicts a longer wait than waking takes, or fewer than `floor` of the
    model's decode workers are awake."""
    role: Literal["", "mixed"] = ""
    """With which role the worker begins: empty is that of its table. A `mixed` one has both: it
    computes the prompts of its streams itself, and others for the decode workers beside it. `baton
    ctl role` changes it while it runs."""
    memory_mib: Annotated[int, Meta(ge=0)] = 0
    """MiB of host memory that this worker may take, which `baton doctor` and `baton up` add up for
    all workers of the file; 0 counts its weights, KV, store and engine instead."""
    engine: EngineConfig = EngineConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    """Of a decode worker, and with its `hand_over` of a prefill worker."""
    kv: KvConfig = KvConfig()


class PoolConfig(Section, frozen=True):
    """A pool: a daemon that stores KV for all workers of a model, and has no engine. Its keys of
    `kv` override those of `[kv]` one by one."""

    model: str = ""
    """NAME of the model whose KV it holds, where the file has `[models.NAME]`; empty is the only
    one."""
    kv: KvConfig = KvConfig()


class Config(Section, frozen=True):
    """The whole fleet file."""

    fleet: FleetConfig = FleetConfig()
    model: ModelConfig = ModelConfig()
    models: dict[str, ModelConfig] = field(default_factory=dict)
    """The models of a fleet that serves several, in place of `[model]`: `[models.chat]`."""
    adapters: dict[str, AdapterConfig] = field(default_factory=dict)
    """The LoRA adapters with which workers start, one table for each name: `[adapters.NAME]`."""
    engine: EngineConfig = EngineConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    kv: KvConfig = KvConfig()
    limits: LimitsConfig = LimitsConfig()
    gateway: GatewayConfig = GatewayConfig()
    router: RouterConfig = RouterConfig()
    health: HealthConfig = HealthConfig()
    security: SecurityConfig = SecurityConfig()
    up: UpConfig = UpConfig()
    timeline: TimelineConfig = TimelineConfig()
    prices: PricesConfig = PricesConfig()
    prefill: dict[str, WorkerConfig] = field(default_factory=dict)
    """Prefill workers of the fleet, one table for each name: `[prefill.p0]`."""
    decode: dict[str, WorkerConfig] = field(default_factory=dict)
    """Decode workers of the fleet, one table for each name: `[decode.d0]`."""
    pool: dict[str, PoolConfig] = field(default_factory=dict)
    """Pools of the fleet, one table for each name: `[pool.s0]`."""

    @property
    def served(self) -> dict[str, ModelConfig]:
        """All models, by the name that clients ask for."""
        models = self.models.values() or (self.model,)
        return {model.served_name: model for model in models}

    @property
    def model_args(self) -> dict[str, Any]:
        """`[engine.args]` of a worker of `model` with a real engine, of which what concerns the
        model is alike on all its workers."""
        workers = (*self.prefill.values(), *self.decode.values())
        real = [
            worker.engine.args
            for worker in workers
            if worker.engine.kind == "vllm" and self.model_of(worker) == self.model
        ]
        return real[0] if real else {**self.engine.args, **self.model.args}

    @property
    def kv_planes(self) -> dict[str, KvConfig]:
        """The data plane of each worker and pool, by the path of its table."""
        tables: dict[str, dict[str, WorkerConfig] | dict[str, PoolConfig]] = {
            "prefill": self.prefill,
            "decode": self.decode,
            "pool": self.pool,
        }
        return {
            f"{role}.{name}": table.kv
            for role, named in tables.items()
            for name, table in named.items()
        }

    def pool_named(self, name: str) -> PoolConfig:
        """Raises ConfigError when the file has no such pool."""
        if name not in self.pool:
            known = ", ".join(self.pool) or "none"
            raise ConfigError(f"pool.{name}", f"no such pool in the file (there: {known})")
        return self.pool[name]

    def model_of(self, worker: WorkerConfig | PoolConfig) -> ModelConfig:
        """The first model is that of a worker that names none."""
        return self.models[worker.model or next(iter(self.models))] if self.models else self.model

    def base_of(self, adapter: AdapterConfig) -> ModelConfig | None:
        """None: the file has no model of the name that it gives."""
        if not self.models:
            return self.model if adapter.base in ("", self.model.served_name) else None
        if not adapter.base and len(self.models) == 1:
            return self.model
        return self.models.get(adapter.base)

    @property
    def model_adapters(self) -> dict[str, AdapterConfig]:
        """Those of `model`, by name."""
        return {n: one for n, one in self.adapters.items() if self.base_of(one) == self.model}

    def of_model(self, served_name: str) -> Config:
        """The same file, with `model` set to this one of its models, and with what the model says
        itself in `gateway` and `prices`. Code that is about one model is given such a
        configuration, and reads `model` alone."""
        return self._of(self.served[served_name])

    def of_worker(self, role: Role, name: str) -> Config:
        """The same, for the model of this worker. Raises ConfigError when the file has no such
        worker."""
        return self._of(self.model_of(self.worker(role, name)))

    def worker(self, role: Role, name: str) -> WorkerConfig:
        """Raises ConfigError when the file has no such worker."""
        table = self.prefill if role is Role.PREFILL else self.decode
        if name not in table:
            known = ", ".join(table) or "none"
            raise ConfigError(f"{role}.{name}", f"no such worker in the file (there: {known})")
        return table[name]

    def _of(self, model: ModelConfig) -> Config:
        gateway = replace(
            self.gateway,
            text=model.text or self.gateway.text,
            default_max_tokens=model.default_max_tokens or self.gateway.default_max_tokens,
        )
        prices = replace(self.prices, **model.prices)
        return replace(self, model=model, gateway=gateway, prices=prices)
