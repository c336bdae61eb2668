"""Which files make Baton a set of systemd units on this host, and what they hold.

Pure but for reading the templates, which lie in `systemd/` of the source tree, or, installed from a
wheel, in `share/baton/systemd` of the environment. In them `@NAME@` stands for what differs between
hosts.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from common.config import Config
from common.errors import ConfigError

UNITS = Path("etc/systemd/system")
PLACES = {
    "sysusers.conf": Path("etc/sysusers.d/baton.conf"),
    "tmpfiles.conf": Path("etc/tmpfiles.d/baton.conf"),
}
UNIT_PATTERNS = ("*.target", "*.service", "*.service.d/*.conf")
FLEET_TEMPLATE = "fleet.toml"
STOP_MARGIN_SECONDS = 15
"""Above `fleet.drain_ms`: closing the engine, tasks that end late, and a margin."""


@dataclass(frozen=True, slots=True)
class HostPaths:
    """What differs between hosts."""

    #: Path of the `baton` command.
    baton: Path
    #: Path of the fleet file, as the daemons see it.
    config: Path
    #: True if something needed lies in a home directory, which units cannot read by default.
    home: bool = False

    def values(self, config: Config) -> dict[str, str]:
        return {
            "BATON": str(self.baton),
            "CONFIG": str(self.config),
            "CONFIG_DIR": str(self.config.parent),
            "RUN_DIR": config.fleet.run_dir,
            "STOP_SECONDS": str(int(config.fleet.drain_ms / 1000) + STOP_MARGIN_SECONDS),
            "PROTECT_HOME": "read-only" if self.home else "yes",
        }


def templates() -> Path:
    """Raises ConfigError where this installation has none."""
    tree = Path(__file__).resolve().parents[2] / "systemd"
    installed = Path(sys.prefix) / "share" / "baton" / "systemd"
    for folder in (tree, installed):
        if (folder / "baton.target").is_file():
            return folder
    raise ConfigError("install-systemd", f"no unit templates, neither in {tree} nor in {installed}")


def files(folder: Path, host: HostPaths, config: Config) -> dict[Path, str]:
    """Texts by path relative to the root of the host. Raises ConfigError for a value that would
    mean something else in a unit file."""
    values = host.values(config)
    for name, value in values.items():
        if re.search(r"[\s%$\"'\\]", value):
            raise ConfigError(
                "install-systemd", f"{name.lower()} {value!r} has a blank, quote, %, $ or \\ in it"
            )
    found = {path for pattern in UNIT_PATTERNS for path in folder.glob(pattern)}
    texts = {UNITS / path.relative_to(folder): path.read_text() for path in sorted(found)}
    texts |= {place: (folder / name).read_text() for name, place in PLACES.items()}
    return {path: _filled(text, values) for path, text in texts.items()}


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], text)


def units(config: Config, workers: frozenset[str] | None) -> list[str]:
    """What to enable on this host. `workers`: the names of those that run here, pools too, None =
    all. Raises ConfigError for one that the file does not have."""
    known = {*config.prefill, *config.decode, *config.pool}
    for name in sorted((workers or frozenset()) - known):
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError("--workers", f"no worker {name!r} in the fleet file; there are: {there}")
    here = known if workers is None else workers
    return [
        "baton.target",
        "baton-router.service",
        *[f"baton-prefill@{name}.service" for name in config.prefill if name in here],
        *[f"baton-decode@{name}.service" for name in config.decode if name in here],
        *[f"baton-pool@{name}.service" for name in config.pool if name in here],
        *[f"baton-gateway@g{index}.service" for index in range(config.gateway.processes)],
        "baton-health.service",
    ]
