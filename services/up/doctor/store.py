"""The disk below the stores of this host's workers and pools, and the memory of their units.
Readers are apart from judgements, which are pure."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from common.config import Config, StoreConfig
from common.errors import ConfigError
from common.kv.store.sealing import key_path, read_key
from common.process.owned_files import folder_fault
from services.up import preflight
from services.up.doctor.finding import Finding, failed, passed, warned

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
OVER_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre"})
CHUNK_BYTES, SPEED_BYTES, SPEED_SECONDS = 4 << 20, 64 << 20, 1.0
"""What is written to learn how fast a disk is, and how long at most."""
ROOM_BYTES = 4 * SPEED_BYTES
"""Where less is free nothing is written."""
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
    #: What was written to it in a second; 0 = it was not tried.
    mib_per_s: float
    #: What all of them may write in a second at most.
    write_mib_s: float
    #: Why the key cannot be used by which it is encrypted; empty = it can, or there is none.
    key_fault: str = ""


class UnitFacts(NamedTuple):
    """What is known of the memory of one worker or pool under systemd."""

    unit: str
    #: What it takes with its store, in bytes.
    needs: int
    #: What its unit may have (MemoryMax), in bytes; None = no limit, or no such unit.
    limit: int | None


def check(config: Config, gpus: int, memory_max: Callable[[str], int | None]) -> Iterator[Finding]:
    """`memory_max`: as `memory_max_of`."""
    wanted: dict[str, int] = {}
    rates: dict[str, float] = {}
    names: dict[str, list[str]] = {}
    keys: dict[str, set[StoreConfig]] = {}
    for plane, kv in config.kv_planes.items():
        if kv.store.disk_mib:
            path = kv.store.path
            wanted[path] = wanted.get(path, 0) + kv.store.disk_mib
            rates[path] = rates.get(path, 0.0) + kv.store.disk_write_mib_s
            keys.setdefault(path, set()).add(kv.store)
            names.setdefault(path, []).append(plane.partition(".")[2])
    for path, mib in wanted.items():
        facts = read(Path(path), mib, names[path], rates[path])
        faults = {fault for store in keys[path] if (fault := _key_fault(store))}
        yield judge(facts._replace(key_fault="; ".join(sorted(faults))))
    units = units_of(config, gpus, memory_max)
    if units:
        yield judge_units(units)


def read(path: Path, mib: int, workers: list[str], write_mib_s: float = 0.0) -> DiskFacts:
    above = next(folder for folder in (path, *path.parents) if folder.exists())
    folders = [folder for name in workers for folder in sorted(path.glob(f"{name}.*"))]
    faults = [f"{folder}: {fault}" for folder in folders if (fault := folder_fault(folder))]
    if not (above.is_dir() and os.access(above, os.W_OK)):
        faults.append(f"{above} is not a folder that this user may write to")
    free = shutil.disk_usage(above).free
    tried = not faults and free >= ROOM_BYTES
    files = [file for folder in folders if not faults for file in folder.glob("*.kv")]
    return DiskFacts(
        path=str(path),
        mib_wanted=mib,
        fault="; ".join(faults),
        mib_free=free >> 20,
        mib_taken=sum(file.stat().st_blocks * 512 for file in files) >> 20,
        filesystem=filesystem_of(above),
        mib_per_s=written_per_s(above) / (1 << 20) if tried else 0.0,
        write_mib_s=write_mib_s,
    )


def written_per_s(folder: Path) -> float:
    """Bytes that get to the disk in a second; 0 if none does. What is written is gone then."""
    data, written = os.urandom(CHUNK_BYTES), 0
    began = time.monotonic()
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            while written < SPEED_BYTES and time.monotonic() - began < SPEED_SECONDS:
                file.write(data)
                os.fdatasync(file.fileno())
                written += len(data)
    except OSError:
        return 0.0
    return written / (time.monotonic() - began)


def _key_fault(store: StoreConfig) -> str:
    if not store.encrypt_at_rest:
        return ""
    if importlib.util.find_spec("cryptography") is None:
        return "the library cryptography is missing: pip install 'baton-serve[encryption]'"
    path = key_path(store)
    try:
        _, fault = read_key(path)
    except OSError:  # it is made when the first of them starts
        return ""
    return f"{path}: {fault}" if fault else ""


def units_of(config: Config, gpus: int, memory_max: Callable[[str], int | None]) -> list[UnitFacts]:
    """Those with a store whose unit has a limit."""
    try:
        shares = preflight.memory_shares(config, on_gpus=gpus > 0)
    except ConfigError:  # the model is not there, which is said elsewhere
        return []
    found = []
    for share in shares:
        if config.kv_planes[share.path].store.ram_mib:
            role, _, name = share.path.partition(".")
            unit = f"baton-{role}@{name}.service"
            found.append(UnitFacts(unit, share.bytes, memory_max(unit)))
    return [unit for unit in found if unit.limit is not None]


def memory_max_of(unit: str) -> int | None:
    """What a unit of systemd may have of memory, in bytes. None where it has no limit, or there is
    no such unit."""
    command = ["systemctl", "show", "--property=MemoryMax", "--value", unit]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def judge_units(units: list[UnitFacts]) -> Finding:
    short = [unit for unit in units if unit.limit is not None and unit.needs > unit.limit]
    if not short:
        return passed("store memory", f"{len(units)} units with a store may have what they need")
    saw = "; ".join(
        f"{unit.unit} needs about {unit.needs >> 20} MiB with its store, and may have "
        f"{(unit.limit or 0) >> 20}"
        for unit in short
    )
    sentence = f"{saw}: the kernel will end it when the store has filled"
    return warned("store memory", sentence, "raise MemoryMax= in its unit, or lower ram_mib")


def judge(disk: DiskFacts) -> Finding:
    if disk.fault:
        saw = f"{disk.path} cannot be used: {disk.fault}; the workers go on without it"
        return failed("kv.store", saw, FIX)
    if disk.key_fault:
        saw = f"{disk.path} cannot be encrypted: {disk.key_fault}"
        return failed("kv.store", saw, "see [kv.store] encrypt_at_rest and key_file")
    lacking = disk.mib_wanted - disk.mib_taken - disk.mib_free
    saw = f"{disk.path} ({disk.filesystem}): {disk.mib_free} MiB free for {disk.mib_wanted} MiB"
    if disk.mib_per_s:
        saw += f", {disk.mib_per_s:.0f} MiB/s written"
    if lacking > 0:
        sentence = f"{saw}; a worker that finds it full goes on without it"
        return warned("kv.store", sentence, f"free {lacking} MiB, or lower disk_mib")
    if disk.filesystem in IN_MEMORY:
        return warned("kv.store", f"{saw}, but that is memory", "name a folder on a disk")
    if disk.filesystem in OVER_NETWORK:
        sentence = f"{saw}, but that is on another host"
        return warned("kv.store", sentence, "name a folder on a local disk")
    if 0 < disk.mib_per_s < disk.write_mib_s:
        sentence = f"{saw}, of {disk.write_mib_s:.0f} MiB/s that the stores may write"
        return warned("kv.store", sentence, "lower disk_write_mib_s, or choose a faster disk")
    return passed("kv.store", saw)


def filesystem_of(folder: Path) -> str:
    """The type of that of the longest mount point above the folder."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    resolved = folder.resolve()
    for above in (resolved, *resolved.parents):
        if above in mounts:
            return mounts[above]
    return "unknown"
