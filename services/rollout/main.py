"""`baton rollout`: restarts a running fleet's workers one after the other, losing no request."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil

from common import config as configuration
from common.clock import SystemClock
from common.config import Config, FleetConfig, default_run_dir
from common.errors import BatonError, Code, ConfigError
from common.net.admin_client import ask
from common.net.admin_rows import WorkerRow
from common.net.endpoints import admin_address
from services.rollout.core import (
    Action,
    Drain,
    Limits,
    Report,
    Restart,
    Resume,
    Rollout,
    in_turn,
)

POLL_SECONDS = 0.3
ASK_SECONDS = 2.0
EXAMPLES = """\
examples:
  baton rollout                             every worker of the fleet in the default run directory
  baton rollout d0 d1                       these two, in this action
  baton rollout --command "ssh {name} systemctl restart baton-{role}@{name}"
                                            workers of other hosts; default: SIGTERM, and whatever
                                            supervises the worker starts it again

Exit status: 0 all were restarted, 1 stopped before that, 2 the command line.
"""


def main(argv: list[str]) -> int:
    """Returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        config = _config(arguments)
        limits = Limits(
            floor=arguments.floor,
            drain=arguments.drain_seconds,
            ready=arguments.ready_seconds,
            settle=arguments.settle_seconds,
        )
        return asyncio.run(_run(config, arguments.workers, limits, arguments.command))
    except ConfigError as error:
        print(f"baton: {error.message}", file=sys.stderr)
        return 2
    except BatonError as error:
        print(f"baton: {error.message}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton rollout",
        description="Restart workers one at a time: drain, restart, wait until it stays ready.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workers", nargs="*", metavar="WORKER", help="names (default: all)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the fleet file")
    parser.add_argument(
        "--run-dir", type=Path, default=default_run_dir(), metavar="DIR", help="or its run_dir"
    )
    parser.add_argument(
        "--floor",
        type=int,
        default=1,
        metavar="N",
        help="ready workers that each role keeps while one is away (1)",
    )
    parser.add_argument(
        "--command", default="", metavar="CMD", help="how to restart one: {name}, {role}, {pid}"
    )
    for name, seconds, what in (
        ("drain", 60.0, "requests may finish for so long; the rest moves to others (60)"),
        ("ready", 180.0, "how long a worker may take to come back (180)"),
        ("settle", 5.0, "how long it must stay ready before the next one's turn (5)"),
    ):
        parser.add_argument(
            f"--{name}-seconds", type=float, default=seconds, metavar="S", help=what
        )
    return parser


def _config(arguments: argparse.Namespace) -> Config:
    if arguments.config is not None:
        return configuration.load(arguments.config)
    return Config(fleet=FleetConfig(run_dir=str(arguments.run_dir.absolute())))


async def _run(config: Config, names: list[str], limits: Limits, command: str) -> int:
    clock = SystemClock()
    workers = await _workers(config)
    if workers is None:
        sentence = f"no router answers in {config.fleet.run_dir}; is the fleet up?"
        raise BatonError(Code.ROUTER_UNREACHABLE, sentence)
    names = names or _all(workers)
    for name in names:
        if name not in workers:
            known = ", ".join(sorted(workers)) or "none"
            raise ConfigError("WORKER", f"no worker {name[:64]!r}; there are: {known}")
    rollout = Rollout(names, limits, clock.monotonic())
    while not rollout.over:
        actions = rollout.observe(await _workers(config), clock.monotonic())
        await _carry_out(config, rollout, actions, command)
        await asyncio.sleep(POLL_SECONDS)
    print(f"restarted: {', '.join(rollout.done) or 'none'}")
    if rollout.failure:
        print(f"stopped: {rollout.failure}", file=sys.stderr)
        print(f"not restarted: {', '.join(rollout.left)}", file=sys.stderr)
    return int(bool(rollout.failure))


async def _carry_out(config: Config, rollout: Rollout, actions: list[Action], command: str) -> None:
    for action in actions:
        try:
            match action:
                case Report(sentence):
                    print(sentence, flush=True)
                case Drain(worker):
                    await _request(config, "drain", worker.name)
                case Resume(worker):
                    await _request(config, "resume", worker.name)
                case Restart(worker):
                    await asyncio.to_thread(restart, worker, command)
        except BatonError as error:
            await _carry_out(config, rollout, rollout.fail(error.message), command)
            return


def restart(worker: WorkerRow, command: str) -> None:
    """Raises BatonError when it cannot be ordered."""
    if command:
        role = _started_as(worker)
        words = shlex.split(command.format(name=worker.name, role=role, pid=worker.pid))
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            output = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise ConfigError("--command", f"{words[0]} failed: {' '.join(output)}")
        return
    if not _runs_here(worker):
        raise ConfigError(
            "--command", f"process {worker.pid} of {worker.name} is not on this host; say how"
        )
    os.kill(worker.pid, signal.SIGTERM)


def _runs_here(worker: WorkerRow) -> bool:
    """A pid of another host may be anybody's here. The command line of a worker that was forked is
    one word with spaces, which psutil divides."""
    try:
        words = psutil.Process(worker.pid).cmdline()
    except psutil.Error:
        return False
    return worker.name in words and _started_as(worker) in words


def _started_as(worker: WorkerRow) -> str:
    """The role in its unit and on its command line, whatever it is now."""
    return worker.configured_role or worker.role


async def _request(config: Config, verb: str, worker: str) -> None:
    answer = await ask(admin_address(config), verb, {"worker": worker}, ASK_SECONDS)
    if not answer.ok:
        raise ConfigError(verb, answer.error.get("message", "refused"))


async def _workers(config: Config) -> dict[str, WorkerRow] | None:
    """By name, those that are there; None while no router answers."""
    try:
        answer = await ask(admin_address(config), "workers", {}, ASK_SECONDS)
    except BatonError:
        return None
    rows = msgspec.convert(answer.result if answer.ok else [], list[WorkerRow])
    return {row.name: row for row in rows if row.state != "gone"}


def _all(workers: dict[str, WorkerRow]) -> list[str]:
    names_of = {
        role: [w.name for w in workers.values() if w.role == role]
        for role in ("prefill", "decode", "mixed")
    }
    return in_turn(names_of["prefill"], names_of["decode"] + names_of["mixed"])
