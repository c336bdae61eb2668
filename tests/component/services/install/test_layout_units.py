"""The units as systemd itself reads them: no error, no ordering cycle, and how exposed each is."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from common.config import from_mapping
from services.install.layout import UNITS, HostPaths, files, templates, units

EXPOSURE_MAX = {
    "baton-router.service": 1.5,
    "baton-gateway@.service": 1.5,
    "baton-health.service": 1.5,
    "baton-prefill@.service": 2.2,
    "baton-decode@.service": 2.2,
    "baton-pool@.service": 2.2,
}
OF_THE_SYSTEM = Path("/usr/lib/systemd/system")
STORE = {"kv": {"store": {"ram_mib": 1}}}
FLEET = from_mapping({"prefill": {"p0": STORE}, "decode": {"d0": {}}, "pool": {"s0": STORE}})

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None or not OF_THE_SYSTEM.is_dir(),
    reason="no systemd-analyze here (Debian: apt install systemd)",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system with these units, enabled, and the system's own."""
    host = HostPaths(Path("/opt/baton/bin/baton"), Path("/etc/baton/fleet.toml"))
    for path, text in files(templates(), host, FLEET).items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    for command in (tmp_path / "opt/baton/bin/baton", tmp_path / "bin/kill"):
        command.parent.mkdir(parents=True)
        command.write_text("")
        command.chmod(0o755)
    shutil.copytree(OF_THE_SYSTEM, tmp_path / OF_THE_SYSTEM.relative_to("/"), symlinks=True)
    enable(tmp_path / UNITS)
    return tmp_path


def enable(folder: Path) -> None:
    """As `systemctl enable` does, whose --root is not of use without a systemd."""
    for name in units(FLEET, None)[1:]:
        template = folder / re.sub("@[pdgs]0", "@", name)
        wanted = next(
            line for line in template.read_text().splitlines() if line.startswith("WantedBy=")
        )
        for target in wanted.removeprefix("WantedBy=").split():
            wants = folder / f"{target}.wants"
            wants.mkdir(exist_ok=True)
            (wants / name).symlink_to(template)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False
    )


def test_systemd_finds_no_fault_and_no_cycle(root: Path) -> None:
    done = analyze("verify", f"--root={root}", "--man=no", *units(FLEET, None))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("unit", "most"), EXPOSURE_MAX.items())
def test_each_unit_is_closed_up(root: Path, unit: str, most: float) -> None:
    done = analyze("security", "--offline=true", f"--root={root}", "--no-pager", unit)
    score = float(done.stdout.rsplit("level for", 1)[1].split(":")[1].split()[0])
    print(json.dumps({"unit": unit, "exposure": score}))
    assert score <= most
