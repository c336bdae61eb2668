"""The fleet file: its sections (`sections.py`) and how it is read (`reading.py`)."""

from common.config.admission import AdmissionConfig
from common.config.base import NAME_PATTERN, Section
from common.config.degradation import DegradationConfig
from common.config.liveness import LivenessConfig
from common.config.observe import PricesConfig, TimelineConfig
from common.config.reading import (
    default_run_dir,
    effective,
    flatten,
    from_mapping,
    load,
)
from common.config.request_limits import RequestLimits
from common.config.sections import (
    Config,
    EngineConfig,
    FleetConfig,
    GatewayConfig,
    HealthConfig,
    KvConfig,
    Mode,
    ModelConfig,
    RemotePrefill,
    RouterConfig,
    SimConfig,
    WorkerConfig,
)
from common.config.security import SecurityConfig

__all__ = [
    "NAME_PATTERN",
    "AdmissionConfig",
    "Config",
    "DegradationConfig",
    "EngineConfig",
    "FleetConfig",
    "GatewayConfig",
    "HealthConfig",
    "KvConfig",
    "LivenessConfig",
    "Mode",
    "ModelConfig",
    "PricesConfig",
    "RemotePrefill",
    "RequestLimits",
    "RouterConfig",
    "Section",
    "SecurityConfig",
    "SimConfig",
    "TimelineConfig",
    "WorkerConfig",
    "default_run_dir",
    "effective",
    "flatten",
    "from_mapping",
    "load",
]
