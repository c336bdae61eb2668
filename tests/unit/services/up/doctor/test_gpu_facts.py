"""What is read of GPUs, over an NVML that is played and a /sys in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import BatonError, Code
from common.kv.transport.gpudirect import GpuDirect
from services.up.doctor.gpu_facts import (
    Gpu,
    Libraries,
    Peers,
    Rdma,
    read,
    read_libraries,
    read_rdma,
)
from tests.unit.services.up.doctor.played_nvml import GIB, PlayedNvml, installed, write

VERSION_PY = (
    "from typing import Optional\n__version__ = '2.13.0'\ncuda: Optional[str] = {}\nhip = None"
)


def test_each_gpu_and_each_pair_is_read(tmp_path: Path) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:1a:00.0/numa_node", "0\n")
    write(tmp_path, "sys/bus/pci/devices/0000:1b:00.0/numa_node", "-1\n")
    facts = read(lambda: PlayedNvml(3, apart=frozenset({(2, 0)})), tmp_path, [])
    known = ("NVIDIA H200", 141 * GIB, (9, 0))
    assert facts.gpus == (Gpu(0, *known, 0), Gpu(1, *known, None), Gpu(2, *known, None))
    assert facts.peers == (
        Peers(0, 1, status=0, nvlink=True, level=20),
        Peers(0, 2, status=1, nvlink=False, level=20),
        Peers(1, 2, status=0, nvlink=False, level=20),
    )
    assert (facts.nvml, facts.driver, facts.driver_cuda) == ("", "580.159.03", 13_000)


#: Question to the fact that is missing when the driver refuses it, and what stands there then.
OF_A_GPU: dict[str, dict[str, Any]] = {
    "name": {"name": None},
    "memory": {"memory_bytes": None},
    "capability": {"capability": None},
    "pci": {"numa_node": None},
}
OF_A_PAIR: dict[str, dict[str, Any]] = {
    "p2p": {"status": None},
    "nvlink": {"nvlink": False},
    "topology": {"level": None},
}
OF_THE_DRIVER: dict[str, dict[str, Any]] = {
    "driver": {"driver": None},
    "cuda": {"driver_cuda": None},
}
QUESTIONS = frozenset({*OF_A_GPU, *OF_A_PAIR, *OF_THE_DRIVER})


@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_one_question_that_is_refused_leaves_the_other_answers(
    tmp_path: Path, question: str
) -> None:
    write(tmp_path, "sys/bus/pci/devices/0000:1a:00.0/numa_node", "0")
    write(tmp_path, "sys/bus/pci/devices/0000:1b:00.0/numa_node", "0")
    told = read(lambda: PlayedNvml(2), tmp_path, [])
    left = told._replace(
        gpus=tuple(gpu._replace(**OF_A_GPU.get(question, {})) for gpu in told.gpus),
        peers=tuple(pair._replace(**OF_A_PAIR.get(question, {})) for pair in told.peers),
    )._replace(**OF_THE_DRIVER.get(question, {}))
    assert left != told
    assert read(lambda: PlayedNvml(2, refused=frozenset({question})), tmp_path, []) == left


def test_a_driver_that_answers_nothing_is_survived(tmp_path: Path) -> None:
    facts = read(lambda: PlayedNvml(2, refused=QUESTIONS), tmp_path, [])
    assert facts.gpus == (Gpu(0), Gpu(1))
    assert facts.peers == (Peers(0, 1, status=None, nvlink=False, level=None),)


def test_a_lost_gpu_is_listed_and_has_no_peers(tmp_path: Path) -> None:
    facts = read(lambda: PlayedNvml(2, refused=frozenset({"first"})), tmp_path, [])
    assert facts.gpus[0] == Gpu(0)
    assert facts.gpus[1].name == "NVIDIA H200"
    assert facts.peers == ()


def test_without_nvml_the_reason_is_kept(tmp_path: Path) -> None:
    def missing() -> PlayedNvml:
        raise BatonError(Code.INTERNAL, "pynvml is not installed")

    assert read(missing, tmp_path, []).nvml == "pynvml is not installed"
    facts = read(lambda: PlayedNvml(refused=frozenset({"init"})), tmp_path, [])
    assert facts.nvml == "NVML finds no GPU: Not Supported"


@pytest.mark.parametrize(
    ("cuda", "read_as"), [("'13.0'", "13.0"), ('"12.9"', "12.9"), ("None", ""), ("what()", None)]
)
def test_torch_says_its_cuda_without_being_imported(
    tmp_path: Path, cuda: str, read_as: str | None
) -> None:
    installed(tmp_path, "torch", VERSION_PY.format(cuda))
    assert read_libraries([str(tmp_path)]) == Libraries(read_as, ())


def test_each_ucxx_is_found(tmp_path: Path) -> None:
    assert read_libraries([str(tmp_path)]) == Libraries(None, ())
    installed(tmp_path, "ucxx-cu13")
    assert read_libraries([str(tmp_path)]) == Libraries(None, (13,))
    installed(tmp_path, "ucxx-cu12")
    installed(tmp_path, "torch")
    assert read_libraries([str(tmp_path)]) == Libraries(None, (12, 13))


def test_a_host_without_network_cards_has_none(tmp_path: Path) -> None:
    assert read_rdma(tmp_path) == Rdma({}, GpuDirect("", open_module=False, kernel=(0, 0)))
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    assert read_rdma(tmp_path).cards == {}


@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_peer_mem"])
def test_network_cards_and_what_the_kernel_allows_them(tmp_path: Path, module: str) -> None:
    write(tmp_path, "sys/class/infiniband/mlx5_1/device/numa_node", "1\n")
    write(tmp_path, "sys/class/infiniband/mlx5_0/device/numa_node", "-1\n")
    (tmp_path / "sys/class/infiniband/rxe0").mkdir()
    write(tmp_path, f"sys/module/{module}/refcnt", "0")
    write(tmp_path, "sys/module/nvidia/refcnt", "0")
    write(tmp_path, "proc/sys/kernel/osrelease", "5.15.0-119-generic\n")
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03\nGCC version:\n"
    write(tmp_path, "proc/driver/nvidia/version", version)
    cards = {"mlx5_0": None, "mlx5_1": 1, "rxe0": None}
    assert read_rdma(tmp_path) == Rdma(cards, GpuDirect(module, open_module=True, kernel=(5, 15)))
