"""Each judgement of GPUs and their links, from facts: what is well, and what is worse."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import KvConfig
from common.kv.transport.gpudirect import GpuDirect
from services.up.doctor import gpu, host, ucx
from services.up.doctor.finding import Finding, Level
from services.up.doctor.gpu_facts import Gpu, GpuFacts, Libraries, Peers, Rdma

H200 = ("NVIDIA H200", 141 << 30, (9, 0))
NO_CARDS = Rdma({}, GpuDirect("", open_module=True, kernel=(6, 8)))
ONE = GpuFacts(
    nvml="",
    gpus=(Gpu(0, *H200, 0),),
    peers=(),
    driver="580.159.03",
    driver_cuda=13_000,
    libraries=Libraries("13.0", (13,)),
    rdma=NO_CARDS,
)
CARDS = NO_CARDS._replace(cards={"mlx5_0": 0, "mlx5_1": 1})


def found(name: str, **change: Any) -> list[Finding]:
    return [finding for finding in gpu.check(ONE._replace(**change)) if finding.name == name]


def only(name: str, **change: Any) -> Finding:
    (finding,) = found(name, **change)
    return finding


def test_a_good_host_with_one_gpu_passes_with_two_lines() -> None:
    assert [(f.level, f.name, f.saw) for f in gpu.check(ONE)] == [
        (Level.PASS, "gpus", "0: NVIDIA H200, 141.0 GiB, compute capability 9.0"),
        (
            Level.PASS,
            "gpu driver",
            "driver 580.159.03, for CUDA 13.0; torch is built for CUDA 13.0",
        ),
    ]


def test_equal_gpus_are_one_entry_and_what_is_not_told_is_said() -> None:
    others = (Gpu(1, *H200, 1), Gpu(2, "NVIDIA GB10", None, None, None), Gpu(3))
    assert only("gpus", gpus=(*ONE.gpus, *others)).saw == (
        "0, 1: NVIDIA H200, 141.0 GiB, compute capability 9.0; 2: NVIDIA GB10, memory not told by "
        "the driver, compute capability not told by the driver; 3: name not told by the driver, "
        "memory not told by the driver, compute capability not told by the driver"
    )


def test_without_nvml_the_gpus_are_not_known() -> None:
    finding = only("gpus", nvml="pynvml is not installed", gpus=())
    assert (finding.level, finding.fix) == (Level.WARN, host.FIX_NVML)
    assert "pynvml is not installed" in finding.saw


@pytest.mark.parametrize(
    ("change", "level", "saw", "fix"),
    [
        ({"driver_cuda": 13_010}, Level.PASS, "for CUDA 13.1", ""),
        ({"driver_cuda": 12_090}, Level.FAIL, "for CUDA 12.9, but torch", "580 or newer"),
        (
            {"driver_cuda": 13_000, "libraries": Libraries("14.1", (14,))},
            Level.FAIL,
            "CUDA 14.1",
            "one that runs CUDA 14",
        ),
        ({"libraries": Libraries("12.9", (12,))}, Level.PASS, "torch is built for CUDA 12.9", ""),
        ({"libraries": Libraries("12.9", ())}, Level.PASS, "torch is built for CUDA 12.9", ""),
        ({"libraries": Libraries("", (12,))}, Level.WARN, "for the CPU", "make install EXTRA=cuda"),
        ({"libraries": Libraries(None, (12,))}, Level.PASS, "is not known", ""),
        ({"libraries": Libraries("13.0", (12,))}, Level.WARN, "ucxx-cu12 is", "ucxx-cu13 alone"),
        (
            {"libraries": Libraries("13.0", (12, 13))},
            Level.WARN,
            "ucxx-cu12 and ucxx-cu13",
            "ucxx-cu13 alone",
        ),
        (
            {"driver": None, "driver_cuda": None},
            Level.PASS,
            "driver of unknown version, the newest CUDA not told by the driver",
            "",
        ),
    ],
)
def test_driver_torch_and_ucxx(change: dict[str, Any], level: Level, saw: str, fix: str) -> None:
    finding = only("gpu driver", **change)
    assert finding.level is level
    assert saw in finding.saw
    assert fix in finding.fix
    assert bool(finding.fix) is bool(fix)


def test_an_old_driver_and_a_wrong_ucxx_are_both_said() -> None:
    both = found("gpu driver", driver_cuda=12_080, libraries=Libraries("13.0", (12,)))
    assert [finding.level for finding in both] == [Level.FAIL, Level.WARN]


def pair(one: int, other: int, status: int | None = 0, level: int | None = 50) -> Peers:
    return Peers(one, other, status, nvlink=False, level=level)


def test_pairs_that_read_each_other_are_one_line_with_their_links() -> None:
    peers = (pair(0, 1)._replace(nvlink=True), pair(0, 2), pair(2, 3)._replace(nvlink=True))
    finding = only("gpu peers", peers=peers)
    assert finding.level is Level.PASS
    assert finding.saw == (
        "GPUs that read each other's memory: 0-1, 2-3 by NVLink; 0-2 between NUMA nodes"
    )


@pytest.mark.parametrize("level", [*gpu.LEVELS, None])
def test_each_link_has_its_words(level: int | None) -> None:
    words = "by a link not told by the driver" if level is None else gpu.LEVELS[level]
    assert only("gpu peers", peers=(pair(0, 1, level=level),)).saw.endswith(f"0-1 {words}")


def test_pairs_that_cannot_are_warned_of_with_the_reason() -> None:
    peers = (pair(0, 1, 0, 10), pair(0, 2, 1, 30), pair(1, 2, 6, 30), pair(1, 3, 4, 30))
    passing, warning = found("gpu peers", peers=peers)
    assert (passing.level, warning.level, warning.fix) == (Level.PASS, Level.WARN, gpu.FIX_PEERS)
    assert passing.saw.endswith(": 0-1 through one PCIe switch")
    assert warning.saw == (
        "KV goes through host memory between GPUs that cannot read each other's: "
        "0-2 through a PCIe host bridge (the chipset does not support it); "
        "1-2 through a PCIe host bridge (the reason is not told by the driver); "
        "1-3 through a PCIe host bridge (a setting of the driver forbids it)"
    )


def test_a_pair_of_which_nothing_is_told_is_no_warning() -> None:
    finding = only("gpu peers", peers=(pair(0, 1, None, 20),))
    assert finding.level is Level.PASS
    assert "is not told by the driver: 0-1 through several PCIe switches" in finding.saw


@pytest.mark.parametrize(
    ("change", "level", "saw"),
    [
        ({"peer_module": "nvidia_peermem", "open_module": False}, Level.PASS, "nvidia_peermem is"),
        ({"kernel": (5, 12)}, Level.PASS, "by dma-buf: open kernel module, Linux 5.12"),
        ({"kernel": (5, 11)}, Level.WARN, "(open kernel module, Linux 5.11"),
        ({"open_module": False}, Level.WARN, "(no open kernel module, Linux 6.8"),
    ],
)
def test_network_cards_that_may_read_gpu_memory(
    change: dict[str, Any], level: Level, saw: str
) -> None:
    finding = only("gpu rdma", rdma=CARDS._replace(gpudirect=CARDS.gpudirect._replace(**change)))
    assert finding.level is level
    assert saw in finding.saw
    assert "mlx5_0, mlx5_1" in finding.saw
    assert ("modprobe nvidia_peermem" in finding.fix) is (level is Level.WARN)


def test_a_gpu_without_a_card_on_its_node_is_named_with_the_cards() -> None:
    gpus = tuple(Gpu(index, *H200, node) for index, node in enumerate([0, 2, 2, 1, 3]))
    first, second = found("gpu network", gpus=gpus, rdma=CARDS)
    assert first.level is Level.WARN
    assert first.saw == (
        "GPU 1, 2 on NUMA node 2 has no network card there: mlx5_0 on 0, mlx5_1 on 1"
    )
    assert second.saw.startswith("GPU 4 on NUMA node 3")
    assert "or plug a card into node 3" in second.fix


@pytest.mark.parametrize(
    ("node", "cards", "levels"),
    [
        (0, {"mlx5_0": 0}, [Level.PASS]),
        (1, {"mlx5_0": 0}, [Level.WARN]),
        (None, {"mlx5_0": 0}, []),
        (1, {"mlx5_0": 0, "mlx5_1": None}, []),
        (1, {}, []),
    ],
)
def test_a_node_that_is_not_known_is_no_warning(
    node: int | None, cards: dict[str, int | None], levels: list[Level]
) -> None:
    gpus, rdma = (Gpu(0, *H200, node),), NO_CARDS._replace(cards=cards)
    assert [one.level for one in found("gpu network", gpus=gpus, rdma=rdma)] == levels


SEEN = ["self/memory", "tcp/eth0", "tcp/lo", "sysv/memory", "posix/memory", "cma/memory"]
CUDA = ["cuda_copy/cuda", "cuda_ipc/cuda"]
BOTH = "tcp,sm,self,cuda_copy,cuda_ipc"


@pytest.mark.parametrize(
    ("asked", "resources", "level", "saw"),
    [
        (BOTH, [*SEEN, *CUDA], Level.PASS, "may go over cuda_ipc"),
        ("all", [*SEEN, *CUDA], Level.PASS, "may go over cuda_ipc"),
        ("tcp, cuda", [*SEEN, *CUDA], Level.PASS, "may go over cuda_ipc"),
        ("^tcp", [*SEEN, *CUDA], Level.PASS, "may go over cuda_ipc"),
        (BOTH, SEEN, Level.WARN, "UCX finds no cuda_ipc"),
        ("tcp,sm,cuda_copy", [*SEEN, CUDA[0]], Level.WARN, "does not name cuda_ipc"),
        ("tcp,sm,self", SEEN, Level.WARN, "pinned host memory: 'tcp,sm,self' names no"),
        ("^cuda", SEEN, Level.WARN, "pinned host memory"),
    ],
)
def test_what_ucx_picks_between_gpus(
    asked: str, resources: list[str], level: Level, saw: str
) -> None:
    finding = gpu.transports(ONE, asked, resources)
    assert (finding.name, finding.level) == ("gpu transports", level)
    assert saw in finding.saw


@pytest.mark.parametrize(("rdma", "head"), [(NO_CARDS, ""), (CARDS, "rc,")])
def test_the_doctor_has_nothing_against_the_transports_that_it_advises(
    rdma: Rdma, head: str
) -> None:
    fix = gpu.transports(ONE._replace(rdma=rdma), "tcp,sm,self", SEEN).fix
    asked = f"{head}cuda_copy,cuda_ipc,tcp,sm,self"
    assert fix == f'[kv] transports = "{asked}"'
    resources = [*SEEN, *CUDA, *(["rc_mlx5/mlx5_0:1"] if head else [])]
    seen = {"lanes": ["sysv/memory", "tcp/lo"], "resources": resources, "loans": True}
    between = ucx.findings(KvConfig(transports=asked), seen)[-1]
    assert between.level is Level.PASS
    assert "cuda" not in between.saw
