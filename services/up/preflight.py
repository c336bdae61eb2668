"""What `baton up` checks before it starts anything: each problem is one line that names the fix.

All raise ConfigError. Memory is estimated from the weights on disk: each worker holds them once,
its KV cache, and what an engine's libraries take (measured: 1.2 GiB for vLLM on CPU).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from common.config import Config
from common.errors import ConfigError
from common.model.resolve import model_folder
from common.process.owned_files import open_own, own_folder

ENGINE_BYTES = {"vllm": int(1.2 * (1 << 30)), "sim": 120 << 20}
POOL_BYTES = 150 << 20
"""Of a pool's process, without what it holds."""
KV_BYTES_DEFAULT = 256 << 20
GIB = 1 << 30
Lock = IO[str]


def check_port(host: str, port: int, flag: str) -> None:
    """`flag`: what the user would change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                flag,
                f"cannot listen on {host}:{port} ({error.strerror}); choose another with {flag}",
            ) from error


def lock_run_dir(run_dir: Path) -> Lock:
    """Creates the run directory and takes its lock; the lock lives as long as the returned file."""
    try:
        own_folder(run_dir)
        file: Lock = open_own(run_dir / "up.lock", "a+")
    except OSError as error:
        sentence = f"{run_dir} cannot be used: {error.strerror}; or choose another folder"
        raise ConfigError("--run-dir", sentence) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise ConfigError(
            "--run-dir",
            f"another `baton up` (pid {owner}) runs in {run_dir}; stop it or choose another",
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


class MemoryShare(NamedTuple):
    """Host memory of one worker or pool, in bytes."""

    #: As the fleet file names it.
    path: str
    model: str
    #: What it takes by its weights, KV, store and engine.
    estimated: int
    #: What the file says that it may take; 0 = nothing.
    declared: int

    @property
    def bytes(self) -> int:
        return self.declared or self.estimated


def memory_shares(config: Config, *, on_gpus: bool) -> list[MemoryShare]:
    """Of all workers and pools of the file. On GPUs the weights and the KV cache are not in host
    memory; vLLM checks the GPU's own."""
    weights = {name: weights_bytes(model_folder(config.of_model(name))) for name in config.served}
    shares: list[MemoryShare] = []
    for role, workers in (("prefill", config.prefill), ("decode", config.decode)):
        for name, worker in workers.items():
            model = config.model_of(worker).served_name
            kv = worker.engine.kv_cache_mib << 20 or KV_BYTES_DEFAULT
            kv += worker.kv.store.ram_mib << 20
            elsewhere = on_gpus or worker.engine.kind == "sim"
            estimated = ENGINE_BYTES[worker.engine.kind] + (0 if elsewhere else weights[model] + kv)
            declared = worker.memory_mib << 20
            shares.append(MemoryShare(f"{role}.{name}", model, estimated, declared))
    for name, pool in config.pool.items():
        taken = POOL_BYTES + (pool.kv.store.ram_mib << 20)
        shares.append(MemoryShare(f"pool.{name}", config.model_of(pool).served_name, taken, 0))
    return shares


def check_memory(
    config: Config, available_bytes: int | None = None, *, on_gpus: bool = False, fleets: int = 1
) -> list[MemoryShare]:
    """What each worker takes, of so many fleets that are alike. Refuses fleets whose workers cannot
    fit together in the host memory that is free now, and a worker that needs more than it may
    take."""
    available = psutil.virtual_memory().available if available_bytes is None else available_bytes
    shares = memory_shares(config, on_gpus=on_gpus)
    for share in shares:
        if 0 < share.declared < share.estimated:
            raise ConfigError(
                f"{share.path}.memory_mib",
                f"{share.declared / GIB:.1f} GiB, but it needs about {share.estimated / GIB:.1f} "
                "GiB; raise it, or lower its kv_cache_mib or ram_mib",
            )
    needed = fleets * sum(share.bytes for share in shares)
    if needed > available:
        pools = len(config.pool)
        who = f"{fleets * (len(shares) - pools)} workers"
        who += f" and {fleets * pools} pools" if pools else ""
        raise ConfigError(
            "memory",
            f"{who} need about {needed / GIB:.1f} GiB, but {available / GIB:.1f} "
            "GiB is free; use fewer workers, a smaller model, or a smaller [engine] kv_cache_mib "
            "or [kv.store] ram_mib",
        )
    return shares


def weights_bytes(model: Path) -> int:
    """Bytes of the weight files in a model folder."""
    files = [*model.glob("*.safetensors"), *model.glob("*.bin")]
    return sum(file.stat().st_size for file in files)


def find_gpus() -> tuple[int, ...]:
    """Indices of this host's NVIDIA GPUs, by nvidia-smi; empty where there are none."""
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        return ()
    return tuple(int(line) for line in listed.stdout.split() if line.isdigit())
