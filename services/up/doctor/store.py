"""The disk below the stores of this host's workers. Readers are apart from judgements, which are
pure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from common.config import Config
from common.process.owned_files import folder_fault
from services.up.doctor.finding import Finding, failed, passed, warned

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
OVER_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre"})
FIX = "choose another [kv.store] path, or be the daemons' user"


class DiskFacts(NamedTuple):
    """What is known of one `[kv.store] path`."""

    path: str
    #: Of all workers that use it.
    mib_wanted: int
    #: Why it cannot be used; empty = it can.
    fault: str
    mib_free: int
    #: Of what is free or wanted, what the workers' files take already.
    mib_taken: int
    filesystem: str


def check(config: Config) -> Iterator[Finding]:
    wanted: dict[str, int] = {}
    names: dict[str, list[str]] = {}
    for name, worker in [*config.prefill.items(), *config.decode.items()]:
        if worker.kv.store.disk_mib:
            path = worker.kv.store.path
            wanted[path] = wanted.get(path, 0) + worker.kv.store.disk_mib
            names.setdefault(path, []).append(name)
    for path, mib in wanted.items():
        yield judge(read(Path(path), mib, names[path]))


def read(path: Path, mib: int, workers: list[str]) -> DiskFacts:
    above = next(folder for folder in (path, *path.parents) if folder.exists())
    folders = [folder for name in workers for folder in sorted(path.glob(f"{name}.*"))]
    faults = [f"{folder}: {fault}" for folder in folders if (fault := folder_fault(folder))]
    if not (above.is_dir() and os.access(above, os.W_OK)):
        faults.append(f"{above} is not a folder that this user may write to")
    files = [file for folder in folders if not faults for file in folder.glob("*.kv")]
    return DiskFacts(
        path=str(path),
        mib_wanted=mib,
        fault="; ".join(faults),
        mib_free=shutil.disk_usage(above).free >> 20,
        mib_taken=sum(file.stat().st_blocks * 512 for file in files) >> 20,
        filesystem=_filesystem(above),
    )


def judge(disk: DiskFacts) -> Finding:
    if disk.fault:
        saw = f"{disk.path} cannot be used: {disk.fault}; the workers go on without it"
        return failed("kv.store", saw, FIX)
    lacking = disk.mib_wanted - disk.mib_taken - disk.mib_free
    saw = f"{disk.path} ({disk.filesystem}): {disk.mib_free} MiB free for {disk.mib_wanted} MiB"
    if lacking > 0:
        sentence = f"{saw}; a worker that finds it full goes on without it"
        return warned("kv.store", sentence, f"free {lacking} MiB, or lower disk_mib")
    if disk.filesystem in IN_MEMORY:
        return warned("kv.store", f"{saw}, but that is memory", "name a folder on a disk")
    if disk.filesystem in OVER_NETWORK:
        sentence = f"{saw}, but that is on another host"
        return warned("kv.store", sentence, "name a folder on a local disk")
    return passed("kv.store", saw)


def _filesystem(folder: Path) -> str:
    """The type of that of the longest mount point above the folder."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    resolved = folder.resolve()
    for above in (resolved, *resolved.parents):
        if above in mounts:
            return mounts[above]
    return "unknown"
