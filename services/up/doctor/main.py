"""`baton doctor`: flags in, lines out."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from common import config as configuration
from common.config import (
    Config,
    FleetConfig,
    KvConfig,
    StoreConfig,
    WorkerConfig,
    default_run_dir,
)
from common.errors import BatonError, ConfigError
from common.net.admin_client import ask
from common.net.endpoints import admin_address
from services.up import preflight
from services.up.doctor import fleet, gpu, host, jobs, security, software, store, ucx
from services.up.doctor.finding import Finding, Level, failed
from services.up.doctor.fleet import MODEL
from services.up.doctor.gpu_facts import GpuFacts

ASK_SECONDS = 1.0
MARKS = {Level.PASS: "pass", Level.WARN: "WARN", Level.FAIL: "FAIL"}
EPILOG = """\
examples:
  baton doctor                        this host, for the default fleet
  baton doctor --config fleet.toml    this host, for that fleet
  baton doctor --model ~/models/M     can this model be served? (nothing is started)
  baton doctor --json | jq '.[] | select(.level != "pass")'

Exit status: 0 when nothing failed (warnings are no failure), 1 when something did, 2 for bad flags
and, with one line that says why, for a model of --model that cannot be served.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Checks whether this host is fit for a fleet: versions, limits, GPUs with their driver and "
        "links, what UCX will really use for the KV cache, the stores' disks, ports, permissions, "
        "keys, the fleet file. Leaves everything as it was."
    )
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", type=Path, metavar="FILE", help="the fleet file to check for")
    parser.add_argument(
        "--model", metavar="PATH_OR_ID", help="check this model instead of the fleet file's"
    )
    parser.add_argument("--json", action="store_true", help="one JSON list, for scripts")


def main(arguments: argparse.Namespace) -> int:
    found: list[Finding] = []
    refused = ""
    for finding in examine(arguments.config, arguments.model):
        found.append(finding)
        if arguments.model and finding.name == MODEL and finding.level is Level.FAIL:
            refused = finding.fix
            break
        if not arguments.json:
            print(_line(finding), flush=True)
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in found], indent=2))
    elif not refused:
        print(_summary(found))
    if refused:
        print(f"baton: {refused}", file=sys.stderr)
        return 2
    return 1 if any(finding.level is Level.FAIL for finding in found) else 0


def examine(path: Path | None, model: str | None = None) -> Iterator[Finding]:
    """Each finding as it is made: the model and the fleet file first, the slow ones last."""
    gpus, config = len(preflight.find_gpus()), None
    try:
        config = _config(path)
        if model:
            config = replace(config, model=replace(config.model, path=model), models={})
        yield from fleet.about_model(config)
    except ConfigError as error:
        yield failed("config", str(path), error.message)
    yield from software.check()
    yield from host.check(host.read(gpus))
    facts = gpu.read() if gpus else None
    if facts is not None:
        yield from gpu.check(facts)
    if config is None:
        return
    yield from fleet.check(config, running=_running(config), gpus=gpus)
    yield from store.check(config, gpus, store.memory_max_of)
    yield from jobs.check(config)
    yield from security.check(config)
    yield from _ucx(config, facts)


def _ucx(config: Config, gpus: GpuFacts | None) -> Iterator[Finding]:
    """Once for each data plane configuration; its workers are named where there are several."""
    plans: dict[KvConfig, list[str]] = {}
    for path, kv in config.kv_planes.items():
        plane = replace(kv, store=StoreConfig())
        plans.setdefault(plane, []).append(path.partition(".")[2])
    for kv, names in plans.items():
        whose = f" ({', '.join(names)})" if len(plans) > 1 else ""
        for finding in _ways(kv, gpus):
            yield finding._replace(name=f"{finding.name}{whose}")


def _ways(kv: KvConfig, gpus: GpuFacts | None) -> list[Finding]:
    """What UCX makes of one configuration, between GPUs too where there are some."""
    seen = ucx.probe(kv)
    found = ucx.findings(kv, seen)
    if gpus is None or "error" in seen:
        return found
    return [*found, gpu.transports(gpus, kv.transports, seen["resources"])]


def _config(path: Path | None) -> Config:
    if path is not None:
        return configuration.load(path)
    return Config(
        fleet=FleetConfig(run_dir=str(default_run_dir())),
        prefill={"p0": WorkerConfig()},
        decode={"d0": WorkerConfig()},
    )


def _running(config: Config) -> bool:
    try:
        asyncio.run(ask(admin_address(config), "status", seconds=ASK_SECONDS))
    except BatonError:
        return False
    return True


def _line(finding: Finding) -> str:
    line = f"{MARKS[finding.level]}  {finding.name:<14} {finding.saw}"
    return f"{line}\n      {'':<14} fix: {finding.fix}" if finding.fix else line


def _summary(found: list[Finding]) -> str:
    count = {level: sum(f.level is level for f in found) for level in Level}
    if sys.stdout.isatty():
        print()
    return f"{count[Level.PASS]} passed, {count[Level.WARN]} warnings, {count[Level.FAIL]} failures"
