"""`baton install-systemd`: what it writes, what it refuses before it writes, and that it is
idempotent."""

import argparse
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.config import from_mapping
from common.errors import ConfigError
from services.cli import main as cli
from services.install.access import closed, in_home, in_private_tmp
from services.install.layout import STOP_MARGIN_SECONDS, HostPaths, files, templates, units
from services.install.main import install

ROOT = Path(__file__).parents[4]
HOST = HostPaths(Path("/opt/baton/bin/baton"), Path("/etc/baton/fleet.toml"))
FLEET = from_mapping(
    {"prefill": {"p0": {}}, "decode": {"d0": {}, "d1": {}}, "gateway": {"processes": 2}}
)


def arguments(prefix: Path, **changes: object) -> argparse.Namespace:
    given = {"prefix": prefix, "config": HOST.config, "workers": None, "from_home": True}
    return argparse.Namespace(**given | changes)


@pytest.fixture
def readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs these tests may have Python where others cannot read."""
    monkeypatch.setattr("services.install.main.closed", lambda _: None)
    monkeypatch.setattr("services.install.main.in_private_tmp", lambda _: [])


def test_every_template_is_laid_down_and_nothing_is_left_open() -> None:
    texts = files(templates(), HOST, FLEET)
    assert {str(path) for path in texts} == {
        "etc/systemd/system/baton.target",
        "etc/systemd/system/baton-workers.target",
        "etc/systemd/system/baton-router.service",
        "etc/systemd/system/baton-gateway@.service",
        "etc/systemd/system/baton-prefill@.service",
        "etc/systemd/system/baton-decode@.service",
        "etc/systemd/system/baton-pool@.service",
        "etc/systemd/system/baton-health.service",
        "etc/systemd/system/baton-.service.d/10-baton.conf",
        "etc/sysusers.d/baton.conf",
        "etc/tmpfiles.d/baton.conf",
    }
    assert [path for path, text in texts.items() if re.search(r"@[A-Z_]+@", text)] == []


def test_a_stop_may_take_longer_than_the_drain() -> None:
    slow = from_mapping({"fleet": {"drain_ms": 90_500}})
    common = Path("etc/systemd/system/baton-.service.d/10-baton.conf")
    assert f"TimeoutStopSec={90 + STOP_MARGIN_SECONDS}\n" in files(templates(), HOST, slow)[common]


def test_daemons_are_started_as_the_command_line_has_them() -> None:
    """Each ExecStart is parsed by the real parser, up to the file that is not there."""
    for path, text in files(templates(), HOST, FLEET).items():
        for line in re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE):
            words = line.replace("%i", "x0").replace("${BATON_ROUTER_NAME}", "r0").split()
            assert words[0] == str(HOST.baton), path
            assert cli([*words[1:3], "/nowhere/fleet.toml", *words[4:]]) == 2


def test_what_is_enabled_is_what_runs_on_this_host() -> None:
    assert units(FLEET, None) == [
        "baton.target",
        "baton-router.service",
        "baton-prefill@p0.service",
        "baton-decode@d0.service",
        "baton-decode@d1.service",
        "baton-gateway@g0.service",
        "baton-gateway@g1.service",
        "baton-health.service",
    ]
    here = units(FLEET, frozenset({"d1"}))
    assert [name for name in here if "fill@" in name or "code@" in name] == [
        "baton-decode@d1.service"
    ]
    with pytest.raises(ConfigError, match="no worker 'd9' in the fleet file; there are: d0, d1"):
        units(FLEET, frozenset({"d9"}))


@pytest.mark.usefixtures("readable")
def test_it_is_idempotent_and_never_writes_a_fleet_file_that_is_there(tmp_path: Path) -> None:
    first = install(arguments(tmp_path), HOST.baton)
    assert sum(line.startswith("written") for line in first) == 12
    assert "systemctl enable baton.target baton-router.service baton-prefill@p0" in first[-1]
    second = install(arguments(tmp_path), HOST.baton)
    assert [line for line in second[:-1] if not line.startswith("unchanged")] == []
    fleet = tmp_path / "etc/baton/fleet.toml"
    fleet.write_text('[fleet]\nrun_dir = "/run/other"\n[decode.d7]\n')
    third = install(arguments(tmp_path), HOST.baton)
    assert fleet.read_text().endswith("[decode.d7]\n")
    assert "baton-decode@d7.service" in third[-1]
    updated = [line.split()[-1] for line in third if line.startswith("updated")]
    assert {Path(path).name for path in updated} == {"10-baton.conf", "baton.conf"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"config": Path("fleet.toml")}, "must be an absolute path"),
        ({"workers": "p0,d5"}, "no worker 'd5'"),
        ({"config": Path("/etc/a b/fleet.toml")}, "blank, quote"),
    ],
)
@pytest.mark.usefixtures("readable")
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        install(arguments(tmp_path, **changes), HOST.baton)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_in_a_home_is_refused_with_the_two_ways_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"move it, for example below /opt/baton, or give --from"):
        install(arguments(tmp_path, from_home=False), Path("/home", "ann", "baton"))
    assert list(tmp_path.iterdir()) == []


def test_homes_and_temporary_folders_are_known() -> None:
    paths = [Path("/home", "ann"), Path("/root", ".venv"), Path("/opt/x"), Path("/tmp/x")]
    assert in_home(paths) == paths[:2]
    assert in_private_tmp(paths) == paths[3:]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """pytest's own temporary folders are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_way_that_is_closed_to_others_is_found(open_folder: Path) -> None:
    inner = open_folder / "inner"
    inner.mkdir(mode=0o755)
    file = inner / "file"
    file.write_text("")
    file.chmod(0o644)
    assert closed(file) is None
    file.chmod(0o640)
    assert closed(file) == file
    inner.chmod(0o750)
    assert closed(file) == inner
