"""`baton up`: flags in, a running fleet out."""

from __future__ import annotations

import argparse
import os
from itertools import zip_longest
from pathlib import Path
from typing import get_args

from common import config as configuration
from common.clock import SystemClock
from common.config import Config, Mode, default_run_dir
from common.config.gateway import CELLS_MAX
from common.engine.vllm.argument_check import untested
from common.engine.vllm.model_check import check_adapter_files, check_model
from common.errors import ConfigError
from common.net.endpoints import check_socket_paths
from common.process import lifecycle
from common.process.owned_files import own_folder, replace_own
from common.telemetry import log
from services.up import preflight
from services.up.plan import (
    GATEWAYS_MAX,
    POOLS_MAX,
    WORKERS_MAX,
    Child,
    Flags,
    cell_flags,
    cell_names,
    children,
    fleet_toml,
    served_name,
)
from services.up.supervisor import Supervisor

EXAMPLES = """\
examples:
  baton up                                    the embedded model, 1 prefill + 1 decode worker
  baton up --model ~/models/Llama-3.2-1B      your model, from a Hugging Face folder or cached id
  baton up --model ~/models/A --model ~/models/B   two models, each on 1 + 1 workers
  baton up --prefill 2 --decode 4 --port 9000 a larger fleet on this machine
  baton up --mode replicated --decode 2       two workers that both prefill and decode
  baton up --prefill 2 --pools 1              KV outlives the worker that computed it
  baton up --cells 2                          two fleets, so that one may be lost
  baton up --engine sim --decode 8            simulated engines: control plane only, no inference
  baton up --config fleet.toml                exactly the fleet of a file

Ctrl-C lets running requests finish; a second one leaves at once. `baton ctl status` looks inside.
A daemon that dies is started again, after pauses of up to a minute if it keeps dying.

exit status: 0 after Ctrl-C or SIGTERM, 1 the fleet failed, 2 it cannot be started like this,
3 after Ctrl-C or SIGTERM while a daemon kept dying
"""
FLAPPING = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `baton up`, for `baton up --help` too."""
    parser.description = "Run a whole fleet on this machine: gateway, router, workers, health."
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--model",
        action="append",
        metavar="PATH_OR_ID",
        help="model folder, cached Hugging Face id, or baton-tiny, the embedded one (default); "
        "given several times, each model has as many workers as --prefill and --decode say",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="what clients call the model (default: its path's last part); one for each --model",
    )
    parser.add_argument(
        "--mode",
        choices=get_args(Mode),
        default="disaggregated",
        help="disaggregated (default): prefill and decode on separate workers; replicated: every "
        "worker does both; single: one worker does both",
    )
    parser.add_argument(
        "--prefill", type=int, metavar="N", help="prefill workers (1; 0 unless disaggregated)"
    )
    parser.add_argument("--decode", type=int, default=1, metavar="K", help="decode workers (1)")
    parser.add_argument(
        "--pools",
        type=int,
        default=0,
        metavar="N",
        help="pools, which store KV for all workers (0)",
    )
    parser.add_argument(
        "--engine",
        choices=("vllm", "sim"),
        default="vllm",
        help="vllm (default), or sim: modelled time, no inference",
    )
    parser.add_argument(
        "--cells", type=int, default=1, metavar="N", help="such fleets behind one gateway (1)"
    )
    parser.add_argument(
        "--gateways", type=int, default=1, metavar="N", help="gateway processes on the port (1)"
    )
    parser.add_argument(
        "--routers", type=int, choices=(1, 2), default=1, help="2: one more, as standby (1)"
    )
    parser.add_argument("--keys", default="", metavar="FILE", help="API keys, by `baton keys add`")
    parser.add_argument(
        "--allow-anonymous", action="store_true", help="serve other hosts without keys"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address the gateway listens on")
    parser.add_argument("--port", type=int, default=8000, help="port the gateway listens on (8000)")
    parser.add_argument(
        "--health-port", type=int, default=9400, help="port of the health daemon (9400)"
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        default=default_run_dir(),
        help="sockets, logs and the fleet file (default: %(default)s)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a fleet file instead of flags")


def main(arguments: argparse.Namespace) -> int:
    """Returns the exit status: 0 after Ctrl-C or SIGTERM, 1 when the fleet failed, 2 bad flags, 3
    after Ctrl-C or SIGTERM when a daemon kept dying."""
    logger = log.configure("up", "up", "warning", for_people=True)
    try:
        if arguments.prefill is None:
            arguments.prefill = 1 if arguments.mode == "disaggregated" else 0
        arguments.model = arguments.model or ["baton-tiny"]
        _check_flags(arguments)
        gpus = preflight.find_gpus() if arguments.engine == "vllm" else ()
        config, path, lock = _prepare(arguments, gpus)
        fleet = _all_children(config, gpus, arguments.cells)
    except ConfigError as error:
        logger.error("up.refused", sentence=error.message)
        return 2
    supervisors: list[Supervisor] = []

    def make() -> Supervisor:
        supervisors.append(Supervisor(config, path, fleet, SystemClock(), _print))
        return supervisors[0]

    _print(_opening(config))
    for sentence in untested(config):
        _print(f"warning: {sentence}")
    try:
        status = lifecycle.run(make, logger)
        keeps_dying = any(supervisor.flapping() for supervisor in supervisors)
        return FLAPPING if keeps_dying and not status else status
    finally:
        for supervisor in supervisors:
            supervisor.kill_all()
        lock.close()


def _all_children(config: Config, gpus: tuple[int, ...], cells: int) -> list[Child]:
    """Of the fleet of this file, and of those that are its like."""
    workers = len(config.prefill) + len(config.decode)
    fleet: list[Child] = []
    for number in range(cells):
        fleet += children(
            list(config.prefill),
            list(config.decode),
            gpus,
            config.gateway.processes if number == 0 else 0,
            tuple(config.router.standby),
            tuple(config.pool),
            cell=f"c{number}" if number else "",
            gpu_offset=number * workers,
        )
    return fleet


def _check_flags(arguments: argparse.Namespace) -> None:
    if arguments.decode < 1:
        raise ConfigError("--decode", "at least one decode worker is needed; it makes the tokens")
    if arguments.prefill < 0:
        raise ConfigError("--prefill", "cannot be negative; 0 means decode workers prefill too")
    models = len(arguments.model)
    if arguments.cells > 1 and arguments.config is not None:
        raise ConfigError("--cells", "a fleet file names its cells itself, in [gateway.cells]")
    if (arguments.prefill + arguments.decode) * models * arguments.cells > WORKERS_MAX:
        raise ConfigError("--prefill/--decode", f"more than {WORKERS_MAX} workers on one machine")
    if arguments.name and len(arguments.name) != models:
        sentence = f"is given {len(arguments.name)} times for {models} models; name each"
        raise ConfigError("--name", sentence)
    bounds = {
        "gateways": (1, GATEWAYS_MAX),
        "pools": (0, POOLS_MAX // models),
        "cells": (1, CELLS_MAX),
        "port": (1, 65535),
        "health_port": (1, 65535),
    }
    for flag, (least, most) in bounds.items():
        if not least <= getattr(arguments, flag) <= most:
            sentence = f"must be between {least} and {most}"
            raise ConfigError(f"--{flag.replace('_', '-')}", sentence)
    if arguments.mode != "disaggregated" and arguments.prefill:
        raise ConfigError(
            "--prefill", f"mode {arguments.mode} has no prefill workers; use --decode"
        )
    if arguments.mode == "single" and arguments.decode > 1:
        raise ConfigError("--decode", "mode single is one worker; use --mode replicated for more")


def _prepare(
    arguments: argparse.Namespace, gpus: tuple[int, ...]
) -> tuple[Config, Path, preflight.Lock]:
    """Everything that can be found wrong before a process is started."""
    if arguments.config is not None:
        path = arguments.config
        config = configuration.load(path)
        check_socket_paths(config)
        lock = preflight.lock_run_dir(Path(config.fleet.run_dir))
    else:
        run_dir = arguments.run_dir.absolute()
        flags = _flags(arguments, run_dir, gpus)
        names = [served_name(*model) for model in flags.models]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError("--model", f"two models are named {twice}; give each a --name")
        text = fleet_toml(flags)
        check_socket_paths(configuration.parse(text))
        lock = preflight.lock_run_dir(run_dir)
        path = run_dir / "fleet.toml"
        replace_own(path, text.encode())
        config = configuration.load(path)
        for cell in cell_names(flags)[1:]:
            _write_cell(cell_flags(flags, cell))
    preflight.check_port(config.gateway.host, config.gateway.port, "--port")
    preflight.check_port(config.health.host, config.health.port, "--health-port")
    for model in config.served:
        check_model(config.of_model(model))
        check_adapter_files(config.of_model(model))
    preflight.check_memory(config, on_gpus=bool(gpus), fleets=arguments.cells)
    return config, path, lock


def _write_cell(flags: Flags) -> None:
    """The fleet file of a further cell, in its folder."""
    text, folder = fleet_toml(flags), Path(flags.run_dir)
    config = configuration.parse(text)
    check_socket_paths(config)
    preflight.check_port(config.health.host, config.health.port, "--health-port")
    own_folder(folder)
    replace_own(folder / "fleet.toml", text.encode())


def _flags(arguments: argparse.Namespace, run_dir: Path, gpus: tuple[int, ...]) -> Flags:
    return Flags(
        models=tuple(zip_longest(arguments.model, arguments.name, fillvalue="")),
        prefill=arguments.prefill,
        decode=arguments.decode,
        engine=arguments.engine,
        host=arguments.host,
        port=arguments.port,
        health_port=arguments.health_port,
        run_dir=str(run_dir),
        cores=len(os.sched_getaffinity(0)),
        gpus=gpus,
        gateways=arguments.gateways,
        routers=arguments.routers,
        keys_file=str(Path(arguments.keys).absolute()) if arguments.keys else "",
        allow_anonymous=arguments.allow_anonymous,
        mode=arguments.mode,
        pools=arguments.pools,
        cells=arguments.cells,
    )


def _opening(config: Config) -> str:
    kinds = sorted({w.engine.kind for w in (*config.prefill.values(), *config.decode.values())})
    what = "/".join(kinds)
    note = "  (simulated engines: no real inference)" if "sim" in kinds else ""
    mode, count = config.router.mode, len(config.decode)
    workers = f"{len(config.prefill)} prefill + {count} decode workers"
    if mode != "disaggregated":
        workers = f"{count} {mode} worker{'s' if count > 1 else ''}"
    if config.pool:
        workers += f" and {len(config.pool)} pool{'s' if len(config.pool) > 1 else ''}"
    cells = f"{len(config.gateway.cells)} cells, each of " if config.gateway.cells else ""
    return f"baton up: {', '.join(config.served)} on {cells}{workers} ({what}){note}"


def _print(line: str) -> None:
    print(line, flush=True)
