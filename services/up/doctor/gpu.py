"""GPUs of this host, and the ways that KV has from one to another and to the network card.

Everything here is pure. `gpu_facts.py` reads what is judged; `main.py` asks for it only where there
is a GPU. A fact that the driver does not tell is no warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.up.doctor.finding import Finding, failed, passed, warned
from services.up.doctor.gpu_facts import P2P_OK, GpuFacts, Peers, read
from services.up.doctor.host import FIX_NVML

__all__ = ["check", "read", "transports"]

UNTOLD = "not told by the driver"
FIX_PEERS = (
    "turn off PCIe ACS and translation by the IOMMU (iommu=pt), or give the virtual machine GPUs "
    "that are linked; else put the two workers of a pair on GPUs that can (CUDA_VISIBLE_DEVICES)"
)
FIX_RDMA = (
    "modprobe nvidia_peermem, or install the driver's open kernel modules (Linux 5.12, newer)"
)
#: The oldest branch of the driver that runs programs for a CUDA major (CUDA compatibility guide).
DRIVER_BRANCH_MIN = {12: "525", 13: "580"}
GPU_TRANSPORTS = "cuda_copy,cuda_ipc,tcp,sm,self"
#: nvmlGpuTopologyLevel_t in words.
LEVELS = {
    0: "on one board",
    10: "through one PCIe switch",
    20: "through several PCIe switches",
    30: "through a PCIe host bridge",
    40: "between PCIe host bridges of one NUMA node",
    50: "between NUMA nodes",
}
#: nvmlGpuP2PStatus_t in words.
REASONS = {
    1: "the chipset does not support it",
    2: "a GPU does not support it",
    3: "the PCIe topology does not support it",
    4: "a setting of the driver forbids it",
    5: "it is not supported",
}


def check(facts: GpuFacts) -> list[Finding]:
    """All findings but that of `transports`, for which UCX must be asked."""
    return [
        _gpus(facts),
        *_driver(facts),
        *_peers(facts.peers),
        *_rdma(facts),
        *_network(facts),
    ]


def transports(facts: GpuFacts, asked: str, resources: Sequence[str]) -> Finding:
    """How KV goes from one GPU of this host to another. `asked`: `[kv] transports`. `resources`:
    `transport/device` of each that UCX could use of these."""
    rdma = "rc," if facts.rdma.cards else ""
    fix = f'[kv] transports = "{rdma}{GPU_TRANSPORTS}"'
    if not _names(asked, "cuda_ipc") and not _names(asked, "cuda_copy"):
        saw = f"KV between GPUs goes through pinned host memory: {asked!r} names no CUDA transport"
        return warned("gpu transports", saw, fix)
    if any(resource.startswith("cuda_ipc/") for resource in resources):
        return passed("gpu transports", "KV between GPUs of this host may go over cuda_ipc")
    saw = "KV between GPUs of this host is copied through host memory"
    if not _names(asked, "cuda_ipc"):
        return warned("gpu transports", f"{saw}: {asked!r} does not name cuda_ipc", fix)
    return warned(
        "gpu transports",
        f"{saw}: UCX finds no cuda_ipc",
        "check that ucxx is the build for this CUDA, and that this user reaches the GPUs",
    )


def _names(asked: str, transport: str) -> bool:
    """Whether a UCX_TLS list allows this CUDA transport; `^` makes it a list of what it forbids."""
    names = {name.strip() for name in asked.removeprefix("^").split(",")}
    return bool(names & {transport, "cuda", "all"}) is not asked.startswith("^")


def _gpus(facts: GpuFacts) -> Finding:
    if facts.nvml:
        return warned("gpus", f"{facts.nvml}; what GPUs these are is not known", FIX_NVML)
    alike: dict[str, list[str]] = {}
    for gpu in facts.gpus:
        memory, capability = gpu.memory_bytes, gpu.capability
        words = (
            gpu.name or f"name {UNTOLD}",
            f"memory {UNTOLD}" if memory is None else f"{memory / (1 << 30):.1f} GiB",
            f"compute capability {_dotted(capability) if capability else UNTOLD}",
        )
        alike.setdefault(", ".join(words), []).append(str(gpu.number))
    return passed("gpus", "; ".join(f"{', '.join(who)}: {what}" for what, who in alike.items()))


def _driver(facts: GpuFacts) -> list[Finding]:
    """The driver against torch, and torch against ucxx."""
    torch_cuda, ucxx = facts.libraries
    newest = facts.driver_cuda
    runs = f"the newest CUDA {UNTOLD}" if newest is None else f"for CUDA {_dotted(_cuda(newest))}"
    saw = f"driver {facts.driver or 'of unknown version'}, {runs}"
    if torch_cuda == "":
        fix = "make install EXTRA=cuda"
        return [warned("gpu driver", f"{saw}, but torch is the build for the CPU", fix)]
    if torch_cuda is None:
        return [passed("gpu driver", f"{saw}; for which CUDA torch is built is not known")]
    found = []
    major = int(torch_cuda.partition(".")[0])
    if newest is not None and _cuda(newest)[0] < major:
        branch = DRIVER_BRANCH_MIN.get(major)
        newer = f"{branch} or newer" if branch else f"one that runs CUDA {major}"
        saw_torch = f"{saw}, but torch is built for CUDA {torch_cuda}: no worker starts"
        found.append(failed("gpu driver", saw_torch, f"update the driver: {newer}"))
    if ucxx and set(ucxx) != {major}:
        names = " and ".join(f"ucxx-cu{one}" for one in ucxx)
        fix = f"install ucxx-cu{major} alone, as `make install EXTRA=cuda` does"
        saw_ucxx = f"{names} is installed beside torch for CUDA {torch_cuda}"
        found.append(warned("gpu driver", saw_ucxx, fix))
    return found or [passed("gpu driver", f"{saw}; torch is built for CUDA {torch_cuda}")]


def _cuda(number: int) -> tuple[int, int]:
    """Of NVML's number: 13000 is 13.0, 12090 is 12.9."""
    return number // 1_000, number % 1_000 // 10


def _dotted(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)


def _peers(peers: Sequence[Peers]) -> list[Finding]:
    """One finding for what works and one for what does not, so that 28 pairs are two lines."""
    apart = [pair for pair in peers if pair.status not in {P2P_OK, None}]
    near = [pair for pair in peers if pair.status == P2P_OK]
    silent = [pair for pair in peers if pair.status is None]
    found = []
    if near:
        saw = f"GPUs that read each other's memory: {_grouped(near)}"
        found.append(passed("gpu peers", saw))
    if silent:
        saw = f"whether GPUs read each other's memory is {UNTOLD}: {_grouped(silent)}"
        found.append(passed("gpu peers", saw))
    if apart:
        saw = (
            "KV goes through host memory between GPUs that cannot read each other's: "
            f"{_grouped(apart)}"
        )
        found.append(warned("gpu peers", saw, FIX_PEERS))
    return found


def _grouped(peers: Iterable[Peers]) -> str:
    """`0-1, 2-3 by NVLink; 0-2 between NUMA nodes`."""
    alike: dict[str, list[str]] = {}
    for pair in peers:
        link = LEVELS.get(-1 if pair.level is None else pair.level, f"by a link {UNTOLD}")
        words = "by NVLink" if pair.nvlink else link
        if pair.status:
            words += f" ({REASONS.get(pair.status, f'the reason is {UNTOLD}')})"
        alike.setdefault(words, []).append(f"{pair.one}-{pair.other}")
    return "; ".join(f"{', '.join(who)} {how}" for how, who in alike.items())


def _rdma(facts: GpuFacts) -> list[Finding]:
    """Whether network cards may read GPU memory."""
    rdma = facts.rdma
    if not rdma.cards:
        return []
    cards = ", ".join(rdma.cards)
    direct = rdma.gpudirect
    if direct.peer_module:
        return [passed("gpu rdma", f"{cards} may read GPU memory: {direct.peer_module} is loaded")]
    linux = f"Linux {_dotted(direct.kernel)}"
    if direct.by_dma_buf:
        saw = f"{cards} may read GPU memory by dma-buf: open kernel module, {linux}"
        return [passed("gpu rdma", saw)]
    module = "open kernel module" if direct.open_module else "no open kernel module"
    saw = (
        f"KV between hosts goes through pinned host memory: the kernel does not let {cards} read "
        f"GPU memory ({module}, {linux}, no nvidia_peermem)"
    )
    return [warned("gpu rdma", saw, FIX_RDMA)]


def _network(facts: GpuFacts) -> list[Finding]:
    """Whether each GPU has a network card on its NUMA node; nothing where that is not known."""
    cards = facts.rdma.cards
    if not cards or None in cards.values():
        return []
    far: dict[int, list[str]] = {}
    for gpu in facts.gpus:
        if gpu.numa_node is not None and gpu.numa_node not in cards.values():
            far.setdefault(gpu.numa_node, []).append(str(gpu.number))
    elsewhere = ", ".join(f"{card} on {node}" for card, node in cards.items())
    found = [
        warned(
            "gpu network",
            f"GPU {', '.join(who)} on NUMA node {node} has no network card there: {elsewhere}",
            "give workers that send KV to other hosts GPUs beside a card (CUDA_VISIBLE_DEVICES), "
            f"or plug a card into node {node}",
        )
        for node, who in sorted(far.items())
    ]
    if found or any(gpu.numa_node is None for gpu in facts.gpus):
        return found
    return [passed("gpu network", f"each GPU has a network card on its NUMA node: {elsewhere}")]
