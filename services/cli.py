"""The `baton` command: one process per service, and the tools around them.

`baton SERVICE --config FILE --name NAME` is what systemd, compose and `baton up` start. Imports are
made inside the branches: `baton ctl` must not pay for an engine.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import secrets
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from common import config as configuration
from common import lifecycle, log
from common.errors import BatonError, ConfigError
from common.log import Logger
from common.messages import Role
from common.notify import Notifier
from common.upkeep import Source

PR_SET_PDEATHSIG = 1
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
SERVICES = (Role.GATEWAY, Role.ROUTER, Role.PREFILL, Role.DECODE, Role.HEALTH)
HOST_TOOLS = ("up", "doctor", "install-systemd")
ROUTERS = ("router.control", "router.standby")
SECTIONS = {
    Role.GATEWAY: ("fleet", "model", "gateway", *ROUTERS),
    Role.ROUTER: ("fleet", "router", "kv"),
    Role.PREFILL: ("fleet", "model", "prefill.{name}", *ROUTERS),
    Role.DECODE: ("fleet", "model", "decode.{name}", *ROUTERS),
    Role.HEALTH: ("fleet", "health"),
}
"""The keys that each daemon lives by; when others change in the file, it has nothing to say."""
MEASUREMENTS = {
    "bench": "load against an endpoint, and what its clients saw",
    "profile": "measure a live fleet's workers",
    "plan": "which fleet a load needs",
}
TOOLS = {
    "ctl": "talk to a running fleet's admin socket",
    "keys": "make, list and revoke API keys",
    "keygen": "make and rotate hosts' keys",
    "rollout": "restart a fleet's workers one by one",
    "completion": "what bash or zsh needs to complete this command",
    **MEASUREMENTS,
}
"""Commands that read their own command line."""
HELP = """\
Baton serves large language models with prefill and decode on separate workers.

  baton up                    a whole fleet on this machine; start here
  baton ctl status            look inside a running fleet (also: workers, requests, explain, help)
  baton doctor                is this host fit for it? versions, limits, what UCX will use, ports
  baton rollout               restart the workers one after the other, losing no request
  baton keys add              make API keys, list and revoke them
  baton keygen add            make the keys by which hosts know each other
  baton bench                 load against any OpenAI endpoint; bench crossover: does it pay?
  baton profile, baton plan   measure workers; which fleet does a load need?
  baton check --config FILE   validate a fleet file
  baton config --config FILE  print the effective configuration and where each value came from
  baton gateway | router | prefill | decode | health --config FILE --name NAME
                              one daemon, as systemd and compose start it
  baton install-systemd       lay down systemd units for this host, say what to do next
"""


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status; 2 for a command line or configuration that cannot be used."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in TOOLS:
        return _printed(lambda: _tool(arguments[0], arguments[1:]))
    parsed = _parser().parse_args(arguments)
    if parsed.command in HOST_TOOLS:
        return _host_tool(parsed)
    try:
        if parsed.command == "check":
            return _check(parsed.config)
        if parsed.command == "config":
            return _printed(lambda: _print_config(parsed.config))
        return _serve(Role(parsed.command), parsed.config, parsed.name)
    except ConfigError as error:
        print(f"baton: {error.message}", file=sys.stderr)
        return 2


def _printed(tool: Callable[[], int]) -> int:
    """Its exit status; that of a broken pipe where who reads the output leaves, as `head` does."""
    try:
        status = tool()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return status


def _host_tool(parsed: argparse.Namespace) -> int:
    if parsed.command == "up":
        from services.up.main import main as up

        return up(parsed)
    if parsed.command == "doctor":
        from services.up.doctor.main import main as doctor

        return doctor(parsed)
    from services.install.main import main as install

    return install(parsed)


def _parser() -> argparse.ArgumentParser:
    from services.install.main import add_arguments as add_install_arguments
    from services.up.doctor.main import add_arguments as add_doctor_arguments
    from services.up.main import add_arguments

    parser = argparse.ArgumentParser(
        prog="baton", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"baton {version('baton-serve')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_arguments(commands.add_parser("up", help="run a whole fleet on this machine"))
    add_doctor_arguments(commands.add_parser("doctor", help="is this host fit for a fleet?"))
    add_install_arguments(
        commands.add_parser("install-systemd", help="lay down systemd units for this host")
    )
    for command, about in TOOLS.items():
        commands.add_parser(command, help=about, add_help=False)
    for command in ("check", "config"):
        tool = commands.add_parser(command, help=f"{command} a fleet file")
        tool.add_argument("--config", type=Path, required=True, metavar="FILE")
    for role in SERVICES:
        daemon = commands.add_parser(role.value, help=f"run one {role} daemon")
        daemon.add_argument("--config", type=Path, required=True, metavar="FILE", help="fleet file")
        daemon.add_argument(
            "--name",
            default=role.value,
            metavar="NAME",
            help=f"this daemon's name; for a worker its table [{role}.NAME] in the file",
        )
    return parser


def _tool(command: str, arguments: list[str]) -> int:
    if command == "ctl":
        from services.ctl.main import main as ctl

        return ctl(arguments)
    if command == "keys":
        from services.keys.main import main as keys

        return keys(arguments)
    if command == "completion":
        from services.completion import main as completion

        tools = (*HOST_TOOLS, *TOOLS, "check", "config", *[role.value for role in SERVICES])
        return completion(arguments, main, tools)
    if command == "rollout":
        from services.rollout.main import main as rollout

        return rollout(arguments)
    if command == "keygen":
        from services.keygen.main import main as keygen

        return keygen(arguments)
    from loadtest.main import main as measure

    return measure(command, arguments)


def _check(path: Path) -> int:
    config = configuration.load(path)
    print(
        f"{path}: good. {config.model.served_name} on {len(config.prefill)} prefill and "
        f"{len(config.decode)} decode workers."
    )
    return 0


def _print_config(path: Path) -> int:
    config, sources = configuration.effective(path, os.environ)
    for key, value in configuration.flatten(config):
        print(f"{key} = {value}  # {sources.get(key, 'default')}")
    return 0


def _serve(role: Role, path: Path, name: str) -> int:
    _follow_supervisor()
    config = configuration.load(path)
    logger = log.configure(role.value, name, config.fleet.log_level)
    sections = tuple(each.format(name=name) for each in SECTIONS[role])
    source = Source(config, lambda: configuration.load(path), sections)
    if role in (Role.PREFILL, Role.DECODE):
        return _serve_worker(role, source, name, logger)
    if role is Role.GATEWAY:
        from services.gateway.daemon import make as make_gateway

        return lifecycle.run(lambda: make_gateway(config, name, logger), logger, source)
    if role is Role.ROUTER:
        from services.router.daemon import make as make_router

        return lifecycle.run(lambda: make_router(config, name, logger), logger, source)
    from services.health.daemon import make as make_health

    return lifecycle.run(lambda: make_health(config, name, logger), logger, source)


def _serve_worker(role: Role, source: Source, name: str, logger: Logger) -> int:
    """The engine is opened here, before the loop: vLLM forks, and forks must not meet threads."""
    from common.engine.open import open_engine

    config = source.running
    incarnation = secrets.token_hex(8)
    try:
        engine = open_engine(config, role, name, incarnation, progress=Notifier().status)
    except BatonError as error:
        logger.error("daemon.failed", code=error.code, sentence=error.message)
        return 1
    if role is Role.PREFILL:
        from services.prefill.daemon import make as make_prefill

        return lifecycle.run(
            lambda: make_prefill(config, name, incarnation, engine, logger), logger, source
        )
    from services.decode.daemon import make as make_decode

    return lifecycle.run(
        lambda: make_decode(config, name, incarnation, engine, logger), logger, source
    )


def _follow_supervisor() -> None:
    """Under `baton up`, ask the kernel for a SIGTERM when it dies, so that nothing is orphaned."""
    supervisor = os.environ.get("BATON_SUPERVISOR_PID")
    if not supervisor:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(supervisor):
        sys.exit("baton: the supervisor died while this daemon started")


if __name__ == "__main__":
    sys.exit(main())
