"""A batch whose ledger or files find no room on the disk. The errors are the kernel's and SQLite's
own: files are written to /dev/full, and the ledger may have no more pages."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from common.messages import Submit
from common.process.owned_files import open_private
from services.gateway.jobs import batch_work
from tests.component.services.gateway.rig import MakeRig, Rig, delta
from tests.component.services.gateway.test_daemon_jobs import (
    answer,
    content,
    in_ledger,
    on_disk,
    started,
    until,
)
from tests.rigs.peers import WAIT_SECONDS

LINES = 3
#: Their answers take more than a page of the ledger.
MANY = 16


@pytest.fixture
def jobs(tmp_path: Path) -> dict[str, Any]:
    return {"path": str(tmp_path / "jobs"), "lease_ms": 1000.0}


class Disk:
    """Where output files are written. `is_full`: whether it takes no byte."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = True
        self.refused = 0
        self._opened = open_private
        monkeypatch.setattr(batch_work, "open_private", self._open)
        monkeypatch.setattr(batch_work, "RETRY_MS", 20)

    def _open(self, path: Path) -> int:
        descriptor = self._opened(path)
        if self.is_full:
            self.refused += 1
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, descriptor)
            os.close(full)
        return descriptor


async def test_answers_wait_in_the_ledger_while_their_file_has_no_room(
    make_rig: MakeRig, jobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    rig = await make_rig(jobs=jobs | {"lease_ms": 600_000.0})
    await rig.worker()
    batch = await started(rig, LINES)
    await answer(rig, LINES)
    await refused(rig, disk, 3)
    shown = await until(rig, batch, "finalizing")
    assert shown["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    assert shown["output_file_id"] is None
    disk.is_full = False
    shown = await until(rig, batch, "completed")
    found = await content(rig, shown["output_file_id"])
    assert [entry["custom_id"] for entry in found] == [f"id-{n}" for n in range(LINES)]
    assert {path.name for path in on_disk(jobs)} == {
        shown["input_file_id"],
        shown["output_file_id"],
    }
    assert not any(isinstance(message, Submit) for message in rig.router.drained())


async def test_a_cancelled_batch_ends_once_its_files_have_room(
    make_rig: MakeRig, jobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    rig = await make_rig(jobs=jobs)
    await rig.ready()
    rig.router.answer = lambda _: None
    batch = await started(rig, LINES)
    await rig.router.next(Submit)
    await rig.http.post(f"{rig.url}/v1/batches/{batch}/cancel")
    await refused(rig, disk, 2)
    disk.is_full = False
    shown = await until(rig, batch, "cancelled")
    assert len(await content(rig, shown["error_file_id"])) == LINES


async def test_answers_wait_for_a_ledger_that_has_no_room_and_are_not_computed_again(
    make_rig: MakeRig, jobs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rig = await make_rig(jobs=jobs | {"lease_ms": 60_000.0, "lines_at_once": MANY})
    await rig.worker()
    batch = await started(rig, MANY)
    submits = [await rig.router.next(Submit) for _ in range(MANY)]
    await pages(rig, 1)
    for submit in submits:
        rig.workers[0].send(delta(submit, 0, "ok", finish_reason="length"))
    async with asyncio.timeout(WAIT_SECONDS):
        while "cannot be used: database or disk is full" not in capsys.readouterr().out:
            await rig.turn()
    assert in_ledger(jobs, "SELECT completed < 16 FROM batches") == [(1,)]
    await pages(rig, 1 << 20)
    shown = await until(rig, batch, "completed")
    assert len(await content(rig, shown["output_file_id"])) == MANY
    assert not any(isinstance(message, Submit) for message in rig.router.drained())


async def refused(rig: Rig, disk: Disk, times: int) -> None:
    """The disk has refused a file so often."""
    async with asyncio.timeout(WAIT_SECONDS):
        while disk.refused < times:
            await rig.turn()


def take_free_pages(database: sqlite3.Connection) -> None:
    """Those that the ledger has and does not use."""
    with suppress(sqlite3.OperationalError):
        database.execute("CREATE TABLE filler (bytes BLOB)")
        while True:
            database.execute("INSERT INTO filler VALUES (zeroblob(2000))")


async def pages(rig: Rig, most: int) -> None:
    """How many the ledger may have; if it has more, it may have none beyond them, and 1 leaves it
    no free one."""
    assert rig.gateway._ledger_parts._jobs is not None
    ledger = rig.gateway._ledger_parts._jobs.ledger

    def limit() -> None:
        assert ledger._database is not None
        ledger._database.execute(f"PRAGMA max_page_count = {most}")
        if most == 1:
            take_free_pages(ledger._database)

    await ledger.aside(limit)
