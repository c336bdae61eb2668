"""What an idle fleet costs: each daemon's share of a core, its engine process included.

The share is CPU seconds over wall seconds of the same interval, so that it needs no baseline.
The target is 5 % per daemon (docs/architecture.md, "Processes and sockets").
"""

from __future__ import annotations

import time

import psutil

from tests.rigs.fleet import Fleet, fleet

SECONDS = 20.0
TARGET = 0.05
SETTLE_SECONDS = 3.0


def main() -> None:
    for engine in ("sim", "vllm"):
        with fleet("--engine", engine) as running:
            running.wait_ready()
            time.sleep(SETTLE_SECONDS)
            for name, share in sorted(measure(running).items()):
                verdict = "ok" if share < TARGET else "OVER"
                print(f"{engine:5} {name:3} {share:7.2%} of a core (target {TARGET:.0%}) {verdict}")
            running.stop()


def measure(running: Fleet, seconds: float = SECONDS) -> dict[str, float]:
    """Share of a core by daemon name over `seconds`, child processes included."""
    trees = {
        name: [daemon, *daemon.children(recursive=True)]
        for name, daemon in running.children().items()
    }
    before = {name: _cpu(tree) for name, tree in trees.items()}
    start = time.monotonic()
    time.sleep(seconds)
    wall = time.monotonic() - start
    return {name: (_cpu(tree) - before[name]) / wall for name, tree in trees.items()}


def _cpu(tree: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in tree]
    return sum(each.user + each.system for each in times)
