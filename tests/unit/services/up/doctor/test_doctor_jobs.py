"""What `baton doctor` says of the folder of files and batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import JobsConfig, from_mapping
from services.up.doctor import jobs
from services.up.doctor.finding import Level

JOBS = JobsConfig(path="/srv/jobs", quota_mib=100)


@pytest.mark.parametrize(
    ("fault", "filesystem", "mib_free", "level", "says"),
    [
        ("", "ext4", 100, Level.PASS, "100 MiB free"),
        ("", "ext4", 99, Level.WARN, "one key may have 100 MiB"),
        ("", "tmpfs", 100, Level.WARN, "in memory"),
        ("", "nfs4", 100, Level.FAIL, "not on a disk of this host"),
        ("it has mode 0777", "ext4", 100, Level.FAIL, "mode 0777"),
    ],
)
def test_the_folder_is_judged_by_owner_kind_and_room(
    fault: str, filesystem: str, mib_free: int, level: Level, says: str
) -> None:
    finding = jobs.judge(JOBS, fault, filesystem, mib_free)
    assert finding.level is level
    assert says in finding.saw
    assert bool(finding.fix) == (level is not Level.PASS)


def test_without_a_folder_it_says_how_to_turn_it_on() -> None:
    (finding,) = jobs.check(from_mapping({}))
    assert finding.level is Level.PASS
    assert "[gateway.jobs] path" in finding.saw


def test_a_folder_that_is_not_there_yet_is_judged_by_what_is_above(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there"
    fault, filesystem, mib_free = jobs.read(path)
    assert fault == ""
    assert filesystem
    assert mib_free > 0
    tmp_path.chmod(0o777)
    assert "0777" in jobs.read(tmp_path)[0]


def test_an_old_sqlite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 34, 1))
    (finding,) = jobs.check(from_mapping({"gateway": {"jobs": {"path": "/srv/jobs"}}}))
    assert finding.level is Level.FAIL
