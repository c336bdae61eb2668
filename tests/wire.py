"""A module of ours over a wire of a given speed: in a network namespace of its own, whose
loopback a token bucket (`tc-tbf`) holds to it. The host's own network is not touched.

Over a plain loopback both ends share the host's cores and the bytes move at the speed of memory,
which no common network card does.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = ("unshare", "--net", "--map-root-user")
BURST = "128kb"
"""Two of the loopback's largest packets: less stalls it, more passes unheld."""
HELD = (
    "ip link set lo up && "
    f'tc qdisc replace dev lo root tbf rate "$0"gbit burst {BURST} latency 50ms && exec "$@"'
)


def over(gbits: int, module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs `python -m module` so, from `ROOT`."""
    run = (sys.executable, "-m", module, *arguments)
    return (*NAMESPACE, "sh", "-c", HELD, str(gbits), *run)


@cache
def unavailable() -> str:
    """Why this host has no such wire, empty where it has."""
    try:
        shell = (*NAMESPACE, "sh", "-c", HELD, "1", "true")
        tried = subprocess.run(shell, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return "`unshare` (util-linux) is not installed"
    needs = "needs `ip` and `tc` (iproute2) and leave to make network namespaces"
    return f"{needs}: {tried.stderr.strip()}" if tried.returncode else ""
