"""What the health daemon measures on its host, of its daemons and of the router, each round.

Limits are shares of the whole (0 to 1), or seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from common.net.admin_rows import PairRow
from common.net.admin_status import Status
from common.process.flapping_file import read_flapping
from services.health.dashboard.fleet import ROUTER_SECONDS
from services.health.metrics.merge import Daemon, sample
from services.health.verdicts.host_verdict import Probe

MEMORY_DEGRADED, MEMORY_DOWN = 0.90, 0.97
DISK_DEGRADED, DISK_DOWN = 0.90, 0.98
FDS_DEGRADED, FDS_DOWN = 0.80, 0.95
LAG_DEGRADED, LAG_DOWN = 1.0, 10.0
STEP_AGE_DEGRADED, STEP_AGE_DOWN = 10.0, 60.0


def host_probes(run_dir: Path) -> list[Probe]:
    """Memory of the host and disk under the run directory."""
    memory = psutil.virtual_memory()
    disk = psutil.disk_usage(str(run_dir))
    used = 1.0 - memory.available / memory.total
    full = disk.percent / 100
    return [
        Probe("memory_used", used, MEMORY_DEGRADED, MEMORY_DOWN, f"{used:.0%} of memory is in use"),
        Probe(
            "disk_used", full, DISK_DEGRADED, DISK_DOWN, f"the disk of {run_dir} is {full:.0%} full"
        ),
    ]


def daemon_probes(pages: Mapping[Daemon, str], silent: Iterable[Daemon]) -> list[Probe]:
    """Of each daemon on this host: does it answer, how late is its event loop, how many of its
    files are open, how old is its engine's last step."""
    probes = [
        Probe(
            f"silent:{name}",
            1.0,
            0.5,
            2.0,
            f"{role} {name} has a metrics socket and does not answer on it",
            (role, name),
        )
        for role, name in silent
    ]
    for (role, name), page in pages.items():
        probes += _daemon((role, name), page)
    return probes


def _daemon(daemon: Daemon, page: str) -> list[Probe]:
    daemon_name, name = " ".join(daemon), daemon[1]
    lag = sample(page, "baton_event_loop_lag_seconds") or 0.0
    age = sample(page, "baton_worker_engine_step_age_seconds") or 0.0
    opened, limit = sample(page, "process_open_fds"), sample(page, "process_max_fds")
    fds = opened / limit if opened and limit else 0.0
    late = f"{daemon_name}'s loop is {lag:.1f} s late"
    full = f"{daemon_name} uses {fds:.0%} of its files"
    stands = f"{daemon_name}'s engine made no step for {age:.0f} s while it has work"
    return [
        Probe(f"loop_lag:{name}", lag, LAG_DEGRADED, LAG_DOWN, late, daemon),
        Probe(f"fds:{name}", fds, FDS_DEGRADED, FDS_DOWN, full, daemon),
        Probe(f"step_age:{name}", age, STEP_AGE_DEGRADED, STEP_AGE_DOWN, stands, daemon),
    ]


def flapping_probes(run_dir: Path) -> list[Probe]:
    """The daemons of this host that their supervisor must start again and again."""
    return [
        Probe(f"flapping:{name}", 1.0, 0.5, 2.0, f"{name} {sentence}")
        for name, sentence in read_flapping(run_dir).items()
    ]


def router_probe(status: Status | None) -> Probe:
    """1 when no router answered its admin socket, else 0."""
    silent = 1.0 if status is None else 0.0
    sentence = f"the router does not answer within {ROUTER_SECONDS:g} s; is it running?"
    return Probe("router_silent", silent, 0.5, 2.0, sentence)


def pair_probes(pairs: Iterable[PairRow]) -> list[Probe]:
    """UCX between workers: pairs without a connection, and those that are left alone after handoffs
    that failed. `pairs`: rows of the verb."""
    return [
        Probe(f"pair:{pair.prefill}>{pair.decode}", 1.0, 0.5, 2.0, sentence)
        for pair in pairs
        if (sentence := _trouble(pair))
    ]


def _trouble(pair: PairRow) -> str:
    name, unreachable_s = f"{pair.prefill}→{pair.decode}", pair.unreachable_s
    if unreachable_s is not None:
        return f"{name} unreachable over UCX for {unreachable_s:.0f} s"
    return f"{name} hand no KV over: {pair.state}" if pair.state != "closed" else ""


def gpu_probes() -> list[Probe]:
    """Memory of each GPU, by NVML where there is one."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        return [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _gpu(nvml: Any, index: int) -> Probe:
    """vLLM takes its share of the memory at start, so full memory is no fault; heat is."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    celsius = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
    return Probe(f"gpu_celsius:{index}", celsius, 88.0, 95.0, f"GPU {index} is at {celsius:.0f} °C")
