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

from common.model.embedded import ensure_embedded_model
from loadtest.ports import free_port
from tests.bench.gateway import clients
from tests.bench.gateway.clients import Load
from tests.bench.gateway.cpu import cpu_seconds
from tests.bench.gateway.table import verdict
from tests.rigs.fleet import fleet, wait_until

STREAMS = (32, 128, 256)
TOKENS = 128
WARM_TOKENS = 8
START_SECONDS = 240.0
RATIO_MAX = 0.5


def main() -> None:
    """Ours, theirs, theirs, ours: what drifts with the machine falls on both."""
    ours, theirs = [_ours()], [_theirs()]
    theirs.append(_theirs())
    ours.append(_ours())
    print(f"engine to client, {TOKENS} tokens a stream, CPU µs per token, two turns each:")
    for streams in STREAMS:
        ratios = []
        for mine, their in zip(ours, theirs, strict=True):
            parts = ", ".join(f"{name} {value:.1f}" for name, value in mine[streams].items())
            ratios.append(sum(mine[streams].values()) / their[streams]["api"])
            print(f"  {streams:3} streams: {parts}; vllm serve {their[streams]['api']:.1f}")
        sentence = f"under {RATIO_MAX} of vllm serve's API server, {streams} streams:"
        print(verdict(max(ratios) < RATIO_MAX, f"{sentence} {max(ratios):.2f}"))


def _ours() -> dict[int, dict[str, float]]:
    settings = {"BATON_ENGINE__MAX_NUM_SEQS": str(max(STREAMS))}
    with fleet("--prefill", "0", "--decode", "1", env=settings) as running:
        running.wait_ready()
        children = running.children()
        pids = {"gateway": children["g0"].pid, "decode daemon": children["d0"].pid}
        return {streams: _measure(running.port, streams, pids) for streams in STREAMS}


def _theirs() -> dict[int, dict[str, float]]:
    port = free_port()
    with _vllm_serve(port) as pid:
        return {streams: _measure(port, streams, {"api": pid}) for streams in STREAMS}


def _measure(port: int, streams: int, pids: dict[str, int]) -> dict[str, float]:
    """After a short load that warms."""
    uvloop.run(clients.run(Load(port, streams, WARM_TOKENS)))
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    seen = uvloop.run(clients.run(Load(port, streams, TOKENS)))
    total = streams * TOKENS
    got = sum(map(len, seen.arrivals))
    assert got >= total * 0.9, f"{got} events only"
    return {name: (cpu_seconds(pid) - before[name]) / total * 1e6 for name, pid in pids.items()}


@contextmanager
def _vllm_serve(port: int) -> Iterator[int]:
    """Its API server's process id. `tests.e2e.api.peer` is that server under a version of its
    own."""
    command = [sys.executable, "-m", "tests.e2e.api.peer", "--model", str(ensure_embedded_model())]
    command += ["--served-model-name", "baton-tiny", "--dtype", "float32", "--enforce-eager"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-num-seqs", str(max(STREAMS)), "--disable-log-stats"]
    command += ["--kv-cache-memory-bytes", str(256 << 20)]
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    settings |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    process = subprocess.Popen(
        [*command, "--disable-uvicorn-access-log"],
        env=os.environ | settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until("vllm serve answers", lambda: _serves(port, process), START_SECONDS)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _serves(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "vllm serve ended"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2) as answer:
            return bool(json.load(answer)["data"])
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
