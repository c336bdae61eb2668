"""The ledger on a disk: whose it is, of which version, and shared by processes."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from common.errors import BatonError, Code, ConfigError
from services.gateway.jobs import lines
from services.gateway.jobs.ledger import LEDGER, SCHEMAS, VERSION, Ledger
from tests.unit.services.gateway.jobs.ledgers import batch_of


async def test_all_of_it_is_closed_to_others(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs")
    await ledger.open()
    await ledger.change(lambda db: batch_of(db, 3))
    names = {path.name for path in ledger.folder.iterdir()}
    assert LEDGER in names
    assert len(names) == 3, "the log and its index lie beside it"
    for path in ledger.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(ledger.folder.stat().st_mode) == 0o750
    await ledger.close()
    with pytest.raises(BatonError) as caught:
        await ledger.read(lambda db: None)
    assert caught.value.code is Code.DRAINING


async def test_two_processes_share_one_and_take_each_line_once(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path / "jobs") for _ in range(2)]
    for ledger in ledgers:
        await ledger.open()
    await ledgers[0].change(lambda db: batch_of(db, 200))

    async def take(ledger: Ledger, name: str) -> list[int]:
        taken: list[int] = []
        while held := await ledger.change(lambda db: lines.take(db, name, 7, 0, 0, 1000)):
            taken += [one.number for one in held]
        return taken

    both = await asyncio.gather(take(ledgers[0], "g0"), take(ledgers[1], "g1"))
    assert sorted(both[0] + both[1]) == list(range(1, 201))
    for ledger in ledgers:
        await ledger.close()


async def test_what_fails_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs")
    await ledger.open()

    def half(db: sqlite3.Connection) -> None:
        batch_of(db, 1)
        raise BatonError(Code.NOT_FOUND, "not there")

    with pytest.raises(BatonError, match="not there"):
        await ledger.change(half)
    assert await ledger.read(lambda db: len(db.execute("SELECT * FROM batches").fetchall())) == 0
    with pytest.raises(BatonError, match=r"gateway\.jobs\.path") as caught:
        await ledger.change(lambda db: db.execute("SELECT nothing FROM nowhere"))
    assert caught.value.code is Code.INTERNAL
    await ledger.close()


async def test_a_ledger_of_an_earlier_version_gets_what_it_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir(mode=0o750)
    early = sqlite3.connect(folder / LEDGER)
    early.executescript(SCHEMAS[0] + "PRAGMA user_version = 1;")
    early.execute("INSERT INTO results VALUES ('batch_1', 1, 0, x'00')")
    early.commit()
    early.close()
    (folder / LEDGER).chmod(0o600)

    def rows(db: sqlite3.Connection) -> tuple[int, ...]:
        tables = "SELECT (SELECT count(*) FROM results), (SELECT count(*) FROM responses)"
        return tuple(db.execute(tables).fetchone())

    for _ in range(2):
        ledger = Ledger(folder)
        await ledger.open()
        assert await ledger.read(rows) == (1, 0)
        await ledger.close()


async def test_a_ledger_of_another_version_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "jobs")
    await ledger.open()
    await ledger.change(lambda db: db.execute(f"PRAGMA user_version = {VERSION + 1}"))
    await ledger.close()
    with pytest.raises(ConfigError, match=f"of version {VERSION + 1}"):
        await Ledger(tmp_path / "jobs").open()


async def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir(mode=0o750)
    (folder / LEDGER).write_text("this is no database at all, it is only text" * 100)
    with pytest.raises(ConfigError, match="cannot be used"):
        await Ledger(folder).open()


async def test_a_folder_that_others_may_change_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 0750"):
        await Ledger(folder).open()
