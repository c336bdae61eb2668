"""The fleet file, its ports and its run directory."""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path

import psutil

from common.config import Config
from common.engine.vllm.argument_check import untested
from common.engine.vllm.model_check import check_adapter_files, check_model
from common.errors import BatonError, ConfigError
from common.messages import Role
from common.model.resolve import model_folder
from common.net.endpoints import check_socket_paths
from common.process.descriptors import hard_limit, needed, shortage
from common.process.owned_files import folder_fault
from services.up import preflight
from services.up.doctor.finding import Finding, failed, passed, warned

MODEL = "model"
FIX_RUN_DIR = "choose another with [fleet] run_dir or --run-dir, or be the daemons' user"


def check(config: Config, *, running: bool, gpus: int) -> list[Finding]:
    """`running`: the fleet of this run directory answers; its ports are then its own."""
    findings = [
        _run_dir(Path(config.fleet.run_dir), config),
        descriptors(config, hard_limit()),
    ]
    if running:
        there = passed("fleet", "a fleet is running here; its ports are in use by it")
        total = psutil.virtual_memory().total
        return [*findings, there, memory(config, total, on_gpus=gpus > 0)]
    gateway, health = config.gateway, config.health
    findings += [
        _port("gateway.port", gateway.host, gateway.port),
        _port("health.port", health.host, health.port),
        memory(config, psutil.virtual_memory().available, on_gpus=gpus > 0),
    ]
    return findings


def about_model(config: Config) -> list[Finding]:
    """Whether it can be served, with these engine arguments."""
    return [_model(config), _arguments(config)]


def _run_dir(run_dir: Path, config: Config) -> Finding:
    try:
        check_socket_paths(config)
    except ConfigError as error:
        return failed("run_dir", str(run_dir), error.message)
    if not run_dir.exists():
        above = next(parent for parent in run_dir.absolute().parents if parent.exists())
        if not (above.is_dir() and os.access(above, os.W_OK)):
            return failed(
                "run_dir", f"{run_dir} cannot be made: {above} is not writable", FIX_RUN_DIR
            )
        return passed("run_dir", f"{run_dir} will be made")
    fault = folder_fault(run_dir)
    if fault:
        return failed("run_dir", f"{run_dir} cannot be used: {fault}", FIX_RUN_DIR)
    return passed("run_dir", f"{run_dir} ({stat.S_IMODE(run_dir.stat().st_mode):04o})")


def _model(config: Config) -> Finding:
    """Of all its models."""
    folders: list[str] = []
    for name in config.served:
        model = config.of_model(name)
        try:
            check_model(model)
            check_adapter_files(model)
            folders.append(str(model_folder(model)))
        except BatonError as error:
            return failed(MODEL, model.model.path, error.message)
    return passed(MODEL, ", ".join(folders))


def _arguments(config: Config) -> Finding:
    sentences = untested(config)
    if sentences:
        fix = "leave out what you do not need: docs/configuration.md says which were tried"
        return warned("engine.args", "; ".join(sentences), fix)
    return passed("engine.args", "none that was never tried with a handoff")


def descriptors(config: Config, limit: int) -> Finding:
    """`limit`: to which a daemon of this host can raise its own."""
    roles = [Role.GATEWAY, *([Role.DECODE] if config.decode else [])]
    for role in roles:
        short = shortage(config, role, limit)
        if short:
            return warned("open files", *short)
    need = max(needed(config, role) for role in roles)
    return passed("open files", f"up to {limit} per daemon; this fleet needs {need}")


def _port(key: str, host: str, port: int) -> Finding:
    try:
        preflight.check_port(host, port, key)
    except ConfigError as error:
        return failed(key, f"{host}:{port}", error.message)
    return passed(key, f"{host}:{port} is free")


def memory(config: Config, available: int, *, on_gpus: bool) -> Finding:
    """The memory of all workers of the file together, in bytes `available` on this host: what is
    free, or of a fleet that runs all there is."""
    try:
        shares = preflight.check_memory(config, available, on_gpus=on_gpus)
    except BatonError as error:
        return failed("memory", "too little", error.message)
    by_model: Counter[str] = Counter()
    for share in shares:
        by_model[share.model] += share.bytes
    parts = ", ".join(f"{model} {taken / preflight.GIB:.1f}" for model, taken in by_model.items())
    total = f"{by_model.total() / preflight.GIB:.1f} of {available / preflight.GIB:.1f} GiB"
    return passed("memory", f"the workers of the fleet file take about {total} ({parts})")
