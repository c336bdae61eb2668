"""What `baton doctor` says of the disk below a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import from_mapping
from services.up.doctor import store
from services.up.doctor.finding import Level
from services.up.doctor.store import DiskFacts, judge

GOOD = DiskFacts("/kv", mib_wanted=100, fault="", mib_free=90, mib_taken=20, filesystem="ext4")


@pytest.mark.parametrize(
    ("disk", "level", "says"),
    [
        (GOOD, Level.PASS, "90 MiB free for 100 MiB"),
        (GOOD._replace(mib_taken=0), Level.WARN, "goes on without it"),
        (GOOD._replace(filesystem="tmpfs"), Level.WARN, "that is memory"),
        (GOOD._replace(filesystem="nfs4"), Level.WARN, "another host"),
        (GOOD._replace(fault="it has mode 0777"), Level.FAIL, "mode 0777"),
    ],
)
def test_a_disk_is_judged_by_room_kind_and_owner(disk: DiskFacts, level: Level, says: str) -> None:
    finding = judge(disk)
    assert finding.level is level
    assert says in finding.saw
    assert bool(finding.fix) == (level is not Level.PASS)


def test_what_is_lacking_is_in_the_fix() -> None:
    assert "free 10 MiB" in judge(GOOD._replace(mib_taken=0)).fix


def test_only_stores_on_disk_are_looked_at_and_shared_paths_once(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there"
    disk = {"kv": {"store": {"ram_mib": 8, "disk_mib": 5, "path": str(path)}}}
    config = from_mapping({"prefill": {"p0": disk}, "decode": {"d0": disk, "d1": {}}})
    (finding,) = store.check(config)
    assert f"{path}" in finding.saw
    assert "for 10 MiB" in finding.saw


def test_files_that_are_there_count_and_a_folder_open_to_others_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "d0.0"
    folder.mkdir(mode=0o750)
    (folder / "x.kv").write_bytes(bytes(3 << 20))
    facts = store.read(tmp_path, 10, ["d0"])
    assert (facts.mib_taken, facts.fault) == (3, "")
    assert facts.filesystem != "unknown"
    folder.chmod(0o777)
    assert "chmod 0750" in store.read(tmp_path, 10, ["d0"]).fault
    (tmp_path / "file").touch()
    assert "not a folder" in store.read(tmp_path / "file" / "below", 10, []).fault
