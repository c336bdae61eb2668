"""The folder of files and batches: whether it can be used, and has room for one key's files."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from common.config import Config, JobsConfig
from common.process.owned_files import folder_fault
from services.up.doctor.finding import Finding, failed, passed, warned
from services.up.doctor.store import IN_MEMORY, OVER_NETWORK, filesystem_of

NAME = "jobs"
#: The first that has RETURNING.
SQLITE_MIN = (3, 35, 0)


def check(config: Config) -> Iterator[Finding]:
    jobs = config.gateway.jobs
    if not jobs.path:
        yield passed(NAME, "off; [gateway.jobs] path serves files and batches")
        return
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        saw = f"this Python has SQLite {sqlite3.sqlite_version}, and 3.35 is needed"
        yield failed(NAME, saw, "run on a Python with a newer SQLite")
        return
    yield judge(jobs, *read(Path(jobs.path)))


def read(path: Path) -> tuple[str, str, int]:
    """Why the folder cannot be used (empty: it can), its file system, and MiB free on it. One that
    is not there is judged by the first above that is."""
    found = next(above for above in (path, *path.absolute().parents) if above.exists())
    fault = folder_fault(path) if found == path else ""
    return fault, filesystem_of(found), shutil.disk_usage(found).free >> 20


def judge(jobs: JobsConfig, fault: str, filesystem: str, mib_free: int) -> Finding:
    where = f"{jobs.path} ({filesystem})"
    if fault:
        return failed(NAME, f"{where}: {fault}", "or choose another [gateway.jobs] path")
    if filesystem in OVER_NETWORK:
        saw = f"{where} is not on a disk of this host: the ledger may be damaged there"
        return failed(NAME, saw, "choose a local [gateway.jobs] path")
    if filesystem in IN_MEMORY:
        saw = f"{where} is in memory: files and batches are gone after a restart of the host"
        return warned(NAME, saw, "choose a [gateway.jobs] path on a disk")
    if mib_free < jobs.quota_mib:
        saw = f"{where} has {mib_free} MiB free, and one key may have {jobs.quota_mib} MiB of files"
        return warned(NAME, saw, "choose another [gateway.jobs] path, or a smaller quota_mib")
    return passed(NAME, f"{where} has {mib_free} MiB free; a key may have {jobs.quota_mib} MiB")
