"""NIXL as a peer of `kv`, run by the python of an environment of its own, not by ours.

    python -m venv DIR
    DIR/bin/pip install --no-deps nixl==1.5.1 nixl-cu12==1.5.1 && DIR/bin/pip install numpy
    BATON_PEERS=DIR make bench-kv

Two processes: the child is P, its blocks registered once; this one is D, its blocks registered
once, descriptor lists of all blocks of both prepared once, and each handoff one READ by index from
P's blocks to D's, which is how vLLM's NixlConnector does it. No digest, no ticket, no lease: the
bare transfer. What is timed is making and posting the request and polling it to its end.

Reads from stdin lines `move FIRST BLOCKS` and answers `nixl-ready SECONDS CPU_SECONDS`, the CPU of
all threads of both processes. Arguments: layers, blocks, page bytes, `thread` or `poll`.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

READY = "nixl-ready"
"""Begins the lines that are for us: NIXL logs to stdout too."""


def descriptors(base: int, layers: int, blocks: int, page: int) -> np.ndarray:
    """One row for each page: `[block][layer]`, so that a block is a run of rows."""
    rows = np.zeros((blocks, layers, 3), np.uint64)
    block, layer = np.meshgrid(np.arange(blocks), np.arange(layers), indexing="ij")
    rows[..., 0] = base + (layer * blocks + block) * page
    rows[..., 1] = page
    return rows.reshape(-1, 3)


def agent_of(name: str, mode: str, base: np.ndarray) -> Any:
    from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

    agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=mode == "thread"))
    agent.register_memory([(base.ctypes.data, base.nbytes, 0, "")], "DRAM")
    return agent


def cpu_seconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def serve(layers: int, blocks: int, page: int, mode: str) -> None:
    """P: sends D its metadata and address, then only makes progress."""
    base = np.random.default_rng(1).integers(0, 256, layers * blocks * page, dtype=np.uint8)
    agent = agent_of("p", mode, base)
    print(READY, agent.get_agent_metadata().hex(), base.ctypes.data, flush=True)
    if mode == "thread":
        sys.stdin.read()
        return
    while not select.select([0], [], [], 0)[0]:
        agent.get_new_notifs()


def main() -> None:
    layers, blocks, page = (int(number) for number in sys.argv[1:4])
    mode = sys.argv[4]
    if len(sys.argv) > 5:
        serve(layers, blocks, page, mode)
        return
    child = subprocess.Popen(
        [sys.executable, *sys.argv, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    ready = next(line for line in child.stdout if line.startswith(READY))
    _, metadata, their_base = ready.split()
    base = np.zeros(layers * blocks * page, np.uint8)
    agent = agent_of("d", mode, base)
    peer = agent.add_remote_agent(bytes.fromhex(metadata))
    ours = agent.prep_xfer_dlist("", descriptors(base.ctypes.data, layers, blocks, page), "DRAM")
    theirs = agent.prep_xfer_dlist(peer, descriptors(int(their_base), layers, blocks, page), "DRAM")
    print(READY, child.pid, flush=True)

    def pids_cpu() -> float:
        return cpu_seconds(child.pid) + cpu_seconds(os.getpid())

    for line in sys.stdin:
        _, first, count = line.split()
        rows = np.arange(int(first) * layers, (int(first) + int(count)) * layers, dtype=np.int32)
        cpu, start = pids_cpu(), time.perf_counter()
        handle = agent.make_prepped_xfer("READ", ours, rows, theirs, rows)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        seconds = time.perf_counter() - start
        if state != "DONE":
            raise RuntimeError(f"NIXL returned {state}")
        agent.release_xfer_handle(handle)
        print(READY, seconds, pids_cpu() - cpu, flush=True)
    child.kill()


if __name__ == "__main__":
    main()
