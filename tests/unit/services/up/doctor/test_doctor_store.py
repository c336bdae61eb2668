"""What `baton doctor` says of the disk below a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.config import from_mapping
from services.up.doctor import store
from services.up.doctor.finding import Level
from services.up.doctor.store import DiskFacts, UnitFacts, judge, judge_units

GOOD = DiskFacts(
    "/kv",
    mib_wanted=100,
    fault="",
    mib_free=90,
    mib_taken=20,
    filesystem="ext4",
    mib_per_s=300.0,
    write_mib_s=256.0,
)


def no_limit(_unit: str) -> None:
    return None


@pytest.mark.parametrize(
    ("disk", "level", "says"),
    [
        (GOOD, Level.PASS, "90 MiB free for 100 MiB"),
        (GOOD, Level.PASS, "300 MiB/s written"),
        (GOOD._replace(mib_per_s=0.0), Level.PASS, "90 MiB free"),
        (GOOD._replace(mib_per_s=255.0), Level.WARN, "of 256 MiB/s that the stores may write"),
        (GOOD._replace(key_fault="/k: mode 0644"), Level.FAIL, "encrypted: /k: mode 0644"),
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
    (finding,) = store.check(config, 0, no_limit)
    assert f"{path}" in finding.saw
    pooled = {"pool": {"s0": disk}, "prefill": {"p0": disk}, "decode": {"d0": disk}}
    (with_pool,) = store.check(from_mapping(pooled), 0, no_limit)
    assert "for 15 MiB" in with_pool.saw
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


def test_the_speed_of_a_disk_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    assert store.written_per_s(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
    assert store.written_per_s(tmp_path / "not there") == 0.0


def test_a_key_that_others_may_read_is_found_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "store.key").write_text("ab" * 32)
    (tmp_path / "store.key").chmod(0o644)
    kept = {"ram_mib": 8, "disk_mib": 5, "path": str(tmp_path), "encrypt_at_rest": True}
    config = from_mapping({"prefill": {"p0": {"kv": {"store": kept}}}, "decode": {"d0": {}}})
    (finding,) = store.check(config, 0, no_limit)
    assert finding.level is Level.FAIL
    assert "run chmod 0600" in finding.saw


@pytest.mark.parametrize(
    ("units", "level", "says"),
    [
        ([UnitFacts("a", 5 << 20, 5 << 20)], Level.PASS, "1 units with a store"),
        (
            [UnitFacts("a", 5 << 20, 9 << 20), UnitFacts("b", 5 << 20, 4 << 20)],
            Level.WARN,
            "b needs about 5 MiB with its store, and may have 4",
        ),
    ],
)
def test_a_store_larger_than_its_units_memory_is_told(
    units: list[UnitFacts], level: Level, says: str
) -> None:
    finding = judge_units(units)
    assert finding.level is level
    assert says in finding.saw
    assert bool(finding.fix) == (level is not Level.PASS)


def test_units_are_asked_by_name_and_those_without_a_limit_or_a_store_are_left_out() -> None:
    kept = {"kv": {"store": {"ram_mib": 8}}}
    config = from_mapping({"prefill": {"p0": kept}, "decode": {"d0": {}}, "pool": {"s0": kept}})
    asked = []

    def limit(unit: str) -> int | None:
        asked.append(unit)
        return 1 << 20 if unit.startswith("baton-pool") else None

    (unit,) = store.units_of(config, 0, limit)
    assert asked == ["baton-prefill@p0.service", "baton-pool@s0.service"]
    assert (unit.unit, unit.limit) == ("baton-pool@s0.service", 1 << 20)
    assert unit.needs > 8 << 20
