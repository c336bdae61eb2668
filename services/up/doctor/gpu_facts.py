"""What `gpu.py` judges: GPUs and the driver by NVML, network cards and the kernel by /sys and
/proc, the CUDA versions of libraries by their files. torch is not imported.

NVML may refuse any single question, in a virtual machine above all: that fact is None then, and the
others are read all the same. A GPU has its index in NVML, whatever `CUDA_VISIBLE_DEVICES` says.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import BatonError
from common.kv.transport.gpudirect import GpuDirect, read_gpudirect, text_of
from common.worker.gpu import load_nvml

#: Of NVML's nvmlGpuP2PCapsIndex_t. pynvml's own name for the first is a tuple by mistake.
P2P_READ, P2P_NVLINK, P2P_OK = 0, 2, 0
UCXX_BUILDS = {12: "ucxx-cu12", 13: "ucxx-cu13"}
TORCH_CUDA = re.compile(r"^cuda\b[^=\n]*= *(?:None|['\"]([\d.]+)['\"])", re.MULTILINE)


class Gpu(NamedTuple):
    """One GPU. What the driver does not tell is None."""

    #: Its index in NVML.
    number: int
    name: str | None = None
    memory_bytes: int | None = None
    #: Compute capability, major and minor.
    capability: tuple[int, int] | None = None
    #: NUMA node of its PCI device; None also where the kernel knows of none.
    numa_node: int | None = None


class Peers(NamedTuple):
    """Two GPUs of this host, by number. What the driver does not tell is None."""

    one: int
    other: int
    #: nvmlGpuP2PStatus_t of reading each other's memory: P2P_OK, or why they cannot.
    status: int | None
    nvlink: bool
    #: nvmlGpuTopologyLevel_t: what the way over PCIe from one to the other passes.
    level: int | None


class Libraries(NamedTuple):
    """For which CUDA the installed libraries were built."""

    #: As `torch.version.cuda`, `13.0`; empty for a torch for the CPU, None without torch.
    torch_cuda: str | None
    #: CUDA major of each ucxx that is installed.
    ucxx_majors: tuple[int, ...]


class Rdma(NamedTuple):
    """Network cards with RDMA, and what lets them read GPU memory."""

    #: Card to the NUMA node of its PCI device, None where the kernel knows of none.
    cards: dict[str, int | None]
    gpudirect: GpuDirect


class GpuFacts(NamedTuple):
    """All of it, as it was read."""

    #: Why NVML tells nothing at all; empty if it does tell.
    nvml: str
    gpus: tuple[Gpu, ...]
    peers: tuple[Peers, ...]
    #: Version of the driver.
    driver: str | None
    #: The newest CUDA that the driver runs, as 1000 * major + 10 * minor.
    driver_cuda: int | None
    libraries: Libraries
    rdma: Rdma


def read(
    open_nvml: Callable[[], Any] = load_nvml,
    root: Path = Path("/"),
    path: Sequence[str] | None = None,
) -> GpuFacts:
    """Raises nothing for what it cannot read. `open_nvml` gives pynvml, and may raise BatonError.
    `root` has `sys` and `proc`. `path`: where libraries are installed, None for where this
    interpreter looks."""
    libraries, rdma = read_libraries(path), read_rdma(root)
    try:
        nvml = open_nvml()
    except BatonError as error:
        return GpuFacts(error.message, (), (), None, None, libraries, rdma)
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return GpuFacts(f"NVML finds no GPU: {error}", (), (), None, None, libraries, rdma)
    handles = {n: _told(nvml, nvml.nvmlDeviceGetHandleByIndex, n) for n in range(count)}
    there = [index for index, handle in handles.items() if handle is not None]
    return GpuFacts(
        nvml="",
        gpus=tuple(_gpu(nvml, index, handle, root) for index, handle in handles.items()),
        peers=tuple(_peers(nvml, handles, *pair) for pair in itertools.combinations(there, 2)),
        driver=_told(nvml, nvml.nvmlSystemGetDriverVersion),
        driver_cuda=_told(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2),
        libraries=libraries,
        rdma=rdma,
    )


def _told(nvml: Any, question: Callable[..., Any], *about: Any) -> Any:
    """The answer, or None where the driver has none."""
    try:
        return question(*about)
    except nvml.NVMLError:
        return None


def _gpu(nvml: Any, index: int, handle: Any, root: Path) -> Gpu:
    if handle is None:
        return Gpu(index)
    memory = _told(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _told(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    return Gpu(
        index,
        name=_told(nvml, nvml.nvmlDeviceGetName, handle),
        memory_bytes=None if memory is None else memory.total,
        capability=_told(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle),
        numa_node=None if pci is None else _numa_node(root / _pci_device(pci.busId)),
    )


def _pci_device(bus_id: str) -> str:
    """NVML writes `00000000:1B:00.0` for what is `0000:1b:00.0` in /sys."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"sys/bus/pci/devices/{int(domain, 16):04x}:{rest}"


def _peers(nvml: Any, handles: dict[int, Any], one: int, other: int) -> Peers:
    pair = handles[one], handles[other]
    both = [_told(nvml, nvml.nvmlDeviceGetP2PStatus, *way, P2P_READ) for way in (pair, pair[::-1])]
    told = [status for status in both if status is not None]
    return Peers(
        one,
        other,
        status=max(told, default=None),
        nvlink=_told(nvml, nvml.nvmlDeviceGetP2PStatus, *pair, P2P_NVLINK) == P2P_OK,
        level=_told(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, *pair),
    )


def read_libraries(path: Sequence[str] | None = None) -> Libraries:
    """Reads torch's `version.py` as text. `path`: as for `read`."""
    where = list(sys.path if path is None else path)
    torch = next(iter(Distribution.discover(name="torch", path=where)), None)
    majors = (
        major
        for major, name in UCXX_BUILDS.items()
        if any(True for _ in Distribution.discover(name=name, path=where))
    )
    return Libraries(None if torch is None else _torch_cuda(torch), tuple(majors))


def _torch_cuda(torch: Distribution) -> str | None:
    text = text_of(Path(str(torch.locate_file("torch/version.py"))))
    found = TORCH_CUDA.search(text)
    return None if found is None else found[1] or ""


def read_rdma(root: Path = Path("/")) -> Rdma:
    """`root`: as for `read`. /sys/class/infiniband may be there without a card in it."""
    cards = root / "sys/class/infiniband"
    return Rdma(
        cards={
            card.name: _numa_node(card / "device")
            for card in sorted(cards.iterdir() if cards.is_dir() else ())
        },
        gpudirect=read_gpudirect(root),
    )


def _numa_node(device: Path) -> int | None:
    """The kernel writes -1 where it knows of none."""
    text = text_of(device / "numa_node").strip()
    return int(text) if text.isdigit() else None
