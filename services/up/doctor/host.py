"""Limits and hardware of this host. Readers are apart from judgements, which are pure."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from common.errors import BatonError
from common.worker.gpu import GpuReader, open_reader
from services.up.doctor.finding import Finding, passed, warned

SHM_BYTES_MIN = 256 << 20
MTU_MIN = 1_500
FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"})
CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
NUMA = Path("/sys/devices/system/node")
INFINIBAND = Path("/sys/class/infiniband")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written
FIX_NVML = "install nvidia-ml-py beside vLLM, and let the daemons' user reach the driver"
UNLIMITED = resource.RLIM_INFINITY


class HostFacts(NamedTuple):
    """Limits and hardware as they were read."""

    #: Name of the clock source of the kernel.
    clock: str
    numa_nodes: int
    rdma_devices: tuple[str, ...]
    gpus: int
    #: What NVML reads of them, or why it reads nothing, and whether it does.
    nvml: str
    nvml_reads: bool
    #: Soft limit of locked memory, -1 if unlimited.
    memlock_bytes: int
    #: Size of /dev/shm.
    shm_bytes: int
    #: MTU by interface, of those that are up, without loopback.
    mtu: dict[str, int]


def read(gpus: int, open_gpu: Callable[[], GpuReader] = open_reader) -> HostFacts:
    nvml, nvml_reads = _nvml(open_gpu)
    return HostFacts(
        nvml=nvml,
        nvml_reads=nvml_reads,
        clock=CLOCK.read_text().strip() if CLOCK.exists() else "unknown",
        numa_nodes=len(list(NUMA.glob("node[0-9]*"))) or 1,
        rdma_devices=tuple(sorted(d.name for d in INFINIBAND.iterdir()))
        if INFINIBAND.is_dir()
        else (),
        gpus=gpus,
        memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        shm_bytes=shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.is_dir() else 0,
        mtu={n: s.mtu for n, s in psutil.net_if_stats().items() if s.isup and n != "lo"},
    )


def _nvml(open_gpu: Callable[[], GpuReader]) -> tuple[str, bool]:
    """What workers will report of their GPUs."""
    try:
        reader = open_gpu()
        now = reader.read()
    except BatonError as error:
        return error.message, False
    return f"NVML reads {reader.count}: {now.busy:.0%} busy, memory {now.memory_busy:.0%}", True


def check(host: HostFacts) -> list[Finding]:
    return [
        _gpu(host),
        _gpu_metrics(host),
        _clock(host),
        _numa(host),
        _memlock(host),
        _shared_memory(host),
        *(_mtu(name, mtu) for name, mtu in sorted(host.mtu.items())),
    ]


def _gpu(host: HostFacts) -> Finding:
    saw = f"{host.gpus} NVIDIA GPUs" if host.gpus else "none: vLLM computes on the CPU"
    return passed("gpu", saw)


def _gpu_metrics(host: HostFacts) -> Finding:
    """Whether workers can tell how busy their GPUs are, by phase."""
    if host.nvml_reads or not host.gpus:
        return passed("gpu metrics", host.nvml)
    return warned("gpu metrics", f"{host.nvml}; workers report no utilisation", FIX_NVML)


def _clock(host: HostFacts) -> Finding:
    if host.clock in FAST_CLOCKS:
        return passed("clock source", host.clock)
    return warned(
        "clock source",
        f"{host.clock}: reading the time costs a system call",
        "boot with clocksource=tsc if this CPU has an invariant one",
    )


def _numa(host: HostFacts) -> Finding:
    if host.numa_nodes == 1:
        return passed("numa", "1 node")
    return warned(
        "numa",
        f"{host.numa_nodes} nodes",
        "bind each worker to the node of its GPU and network card: numactl --cpunodebind, or "
        "NUMAPolicy= and CPUAffinity= in its unit",
    )


def _memlock(host: HostFacts) -> Finding:
    if host.memlock_bytes == UNLIMITED:
        return passed("memlock", "unlimited")
    saw = f"{host.memlock_bytes >> 10} KiB may be locked"
    if not host.rdma_devices:
        return passed("memlock", f"{saw}; no RDMA device here needs more")
    return warned(
        "memlock",
        f"{saw}, but RDMA ({', '.join(host.rdma_devices)}) pins its buffers",
        "set LimitMEMLOCK=infinity in the unit, or `* - memlock unlimited` in limits.conf",
    )


def _shared_memory(host: HostFacts) -> Finding:
    saw = f"{SHARED_MEMORY} holds {host.shm_bytes >> 20} MiB"
    if host.shm_bytes >= SHM_BYTES_MIN:
        return passed("shared memory", saw)
    return warned(
        "shared memory",
        f"{saw}, too little for tensor parallel workers and KV inside the host",
        f"mount it larger (docker: --shm-size={SHM_BYTES_MIN >> 20}m)",
    )


def _mtu(name: str, mtu: int) -> Finding:
    if mtu >= MTU_MIN:
        return passed(f"mtu {name}", str(mtu))
    return warned(f"mtu {name}", str(mtu), f"a KV transfer wants {MTU_MIN} or more")
