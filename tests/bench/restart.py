"""A worker that `baton up` starts again after `kill -9`: forked off the fork server, against one in
the same fleet that imports vLLM itself. Real vLLM, in turns."""

from __future__ import annotations

import signal
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from tests.e2e.test_fork_server import forked_and_plain, send

ROUNDS = 3


def main() -> None:
    costs: dict[str, list[tuple[float, float]]] = {"d1": [], "d2": []}
    with tempfile.TemporaryDirectory() as folder, forked_and_plain(Path(folder)) as running:
        for _ in range(ROUNDS):
            for name, found in costs.items():
                found.append(start_cost(send(running, name, signal.SIGKILL)))
    for at, what in enumerate(("from its start until it is ready", "of CPU until then")):
        forked, plain = (statistics.median(one[at] for one in found) for found in costs.values())
        print(f"{what}: forked {forked:.1f} s, importing {plain:.1f} s, ratio {forked / plain:.2f}")


def start_cost(worker: psutil.Process) -> tuple[float, float]:
    """Seconds since its start, and of CPU, the engine's included; taken when it is ready."""
    seconds = time.time() - worker.create_time()
    times = [process.cpu_times() for process in (worker, *worker.children())]
    return seconds, sum(one.user + one.system for one in times)
