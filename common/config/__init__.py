"""The fleet file: its sections, how it is read (`reading.py`) and its reference (`reference.py`).

Every daemon and tool imports this room. Start with `sections.py`, which has the whole file as one
struct.
"""

from common.config.admission import AdmissionConfig
from common.config.balance import BalanceConfig, ScaleConfig
from common.config.base import NAME_PATTERN, Section
from common.config.degradation import DegradationConfig
from common.config.engine import EngineConfig, SimConfig, SpeculationConfig
from common.config.gateway import GatewayConfig, JobsConfig
from common.config.kv import CheckpointConfig, KvConfig, StoreConfig
from common.config.liveness import LivenessConfig
from common.config.observe import PricesConfig, TimelineConfig
from common.config.reading import (
    default_run_dir,
    effective,
    flatten,
    from_mapping,
    load,
    parse,
)
from common.config.request_limits import RequestLimits
from common.config.router import Mode, RebalanceConfig, RemotePrefill, RouterConfig
from common.config.sections import (
    AdapterConfig,
    Config,
    FleetConfig,
    HealthConfig,
    ModelConfig,
    PoolConfig,
    WorkerConfig,
)
from common.config.security import SecurityConfig
