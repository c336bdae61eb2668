"""`baton install-systemd`: installs the units of this host and prints the next steps.

Idempotent: what is already as it should be is left alone. It writes only below `--prefix`, starts
nothing and enables nothing. Changes of your own belong into drop-ins (`systemctl edit`), which it
never touches. A fleet file that exists is never written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import config as configuration
from common.config import Config
from common.errors import ConfigError
from services.install.access import closed, in_home, in_private_tmp
from services.install.layout import FLEET_TEMPLATE, HostPaths, files, templates, units

CONFIG = Path("/etc/baton/fleet.toml")
MODEL_EMBEDDED = "baton-tiny"
NEXT = """\

Next, as root:
  systemd-sysusers && systemd-tmpfiles --create     the user baton and {run_dir}
  baton check --config {config}
  systemctl daemon-reload
  systemctl enable {units}
  systemctl start baton.target                      waits until every daemon is ready

Then:
  baton ctl status --config {config}         can it serve
  journalctl -u 'baton-*' -f                        logs of the daemons
  systemctl reload 'baton-*'                        after a change that can be made live
  systemctl stop baton.target 'baton-*'             drains first: gateways, workers, router
Run this command again after you changed drain_ms or run_dir, or moved the environment.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Lay down systemd units for the daemons of this host."
    parser.add_argument(
        "--prefix", type=Path, default=Path("/"), metavar="DIR", help="root to write below (/)"
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=CONFIG,
        metavar="FILE",
        help="the fleet file, as the daemons will see it; made if missing (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        metavar="NAMES",
        help="the workers of this host, with commas between (default: all of the fleet file)",
    )
    parser.add_argument(
        "--from-home",
        action="store_true",
        help="let the daemons read home directories, because Baton or the model lies in one",
    )


def main(arguments: argparse.Namespace) -> int:
    """Returns the exit status: 0 done, 1 a file could not be written, 2 it would not work."""
    try:
        lines = install(arguments, Path(sys.prefix) / "bin" / "baton")
    except ConfigError as error:
        print(f"baton install-systemd: {error.message}", file=sys.stderr)
        return 2
    except OSError as error:
        sentence = f"cannot write {error.filename}: {error.strerror}; are you root?"
        print(f"baton install-systemd: {sentence}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def install(arguments: argparse.Namespace, baton: Path) -> list[str]:
    """Raises ConfigError before anything is written, OSError in between. Returns what was done."""
    if not arguments.config.is_absolute():
        raise ConfigError("--config", f"{arguments.config} must be an absolute path")
    folder = templates()
    fleet = _below(arguments.prefix, arguments.config)
    source = fleet if fleet.exists() else folder / FLEET_TEMPLATE
    config = configuration.load(source, {})
    host = HostPaths(baton, arguments.config, home=arguments.from_home)
    _check_access(config, host)
    names = frozenset(arguments.workers.split(",")) if arguments.workers else None
    enabled = units(config, names)
    texts = files(folder, host, config)
    lines = [_written(_below(arguments.prefix, path), text) for path, text in texts.items()]
    if not fleet.exists():
        lines.append(_written(fleet, (folder / FLEET_TEMPLATE).read_text()))
    values = {"units": " ".join(enabled), "config": host.config, "run_dir": config.fleet.run_dir}
    return [*lines, NEXT.format(**values)]


def _check_access(config: Config, host: HostPaths) -> None:
    needed = [host.baton, Path(sys.executable).resolve(), host.config]
    models = [model.path for model in config.served.values() if model.path != MODEL_EMBEDDED]
    needed += [Path(path) for path in models if Path(path).is_dir()]
    hidden = [] if host.home else in_home(needed)
    if hidden:
        raise ConfigError(
            "install-systemd",
            f"{hidden[0]} lies in a home directory, which the units do not see; move it, for "
            "example below /opt/baton, or give --from-home",
        )
    for path in in_private_tmp(needed):
        raise ConfigError("install-systemd", f"{path} lies in a temporary directory; move it")
    for path in needed:
        shut = closed(path)
        if shut is not None and path != host.config:
            raise ConfigError(
                "install-systemd",
                f"the user baton cannot read {path}: {shut} is closed to others; "
                f"run chmod o+rX {shut}, or move it, for example below /opt/baton",
            )


def _below(prefix: Path, path: Path) -> Path:
    return prefix / path.relative_to("/") if path.is_absolute() else prefix / path


def _written(path: Path, text: str) -> str:
    if path.exists() and path.read_text() == text:
        return f"unchanged  {path}"
    what = "updated" if path.exists() else "written"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    return f"{what}    {path}"
