"""What lets network cards read the memory of GPUs, by which UCX sends it to other hosts.

A module of the kernel, NVIDIA's or the older one by Mellanox; or dma-buf, for which the driver's
open kernel module and a new enough Linux are needed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
DMA_BUF_KERNEL_MIN = (5, 12)
"""The first Linux from which on dma-buf carries GPU memory to network cards."""


class GpuDirect(NamedTuple):
    """Of the host."""

    peer_module: str
    """The one of PEER_MODULES that is loaded, or empty."""
    open_module: bool
    """Whether the driver's kernel module is the open one, which can export memory as dma-buf."""
    kernel: tuple[int, int]
    """Version of Linux, major and minor."""

    @property
    def by_dma_buf(self) -> bool:
        return self.open_module and self.kernel >= DMA_BUF_KERNEL_MIN

    @property
    def there(self) -> bool:
        return bool(self.peer_module) or self.by_dma_buf


def read_gpudirect(root: Path = Path("/")) -> GpuDirect:
    """`root` has `sys` and `proc`. Raises nothing for what it cannot read."""
    modules = root / "sys/module"
    return GpuDirect(
        peer_module=next((name for name in PEER_MODULES if (modules / name).is_dir()), ""),
        open_module="Open Kernel Module" in text_of(root / "proc/driver/nvidia/version"),
        kernel=_kernel(text_of(root / "proc/sys/kernel/osrelease")),
    )


def text_of(path: Path) -> str:
    """Empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _kernel(release: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
