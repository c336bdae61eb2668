"""The gateway's own soft limit of memory: above it new work is refused, and streams go on.

Without it the kernel would end the gateway, and all its streams with it. The limit is checked when
a body is about to be read, against what the last tick measured.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from common.config import GatewayConfig
from common.errors import BatonError, Code
from services.gateway.requests.refusals import RETRY_SOON_MS

SHARE = 0.8
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: What the kernel limits this container to: cgroup v2, v1.
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


class MemoryLimit:
    def __init__(self, config: GatewayConfig) -> None:
        given = config.limits.memory_mib_max << 20
        self._bytes_max = given or int(available_bytes() * SHARE / config.processes)
        self._used = 0

    def measure(self) -> None:
        """Call it several times a second."""
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        self._used = int(pages) * PAGE_BYTES

    def check(self) -> None:
        """Raises BatonError(OVERLOADED)."""
        if self._used > self._bytes_max:
            raise BatonError(
                Code.OVERLOADED,
                f"this gateway has {self._used >> 20} MiB of memory in use, at most "
                f"{self._bytes_max >> 20} (gateway.limits.memory_mib_max); try again",
                retry_after_ms=RETRY_SOON_MS,
            )


def available_bytes(limits: tuple[Path, ...] = CGROUP_LIMITS) -> int:
    """The memory of the host, or of the container if that has less."""
    found = [int(psutil.virtual_memory().total)]
    for path in limits:
        try:
            found.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # there is no such file, or no limit
            continue
    return min(found)
