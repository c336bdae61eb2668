"""The `baton` command: one process per service, and the tools around them.

systemd, compose and `baton up` start each daemon as `baton SERVICE --config FILE --name NAME`.
Imports stand inside the branches, so that `baton ctl` does not load an engine.
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
from common.config.reference import reference as reference_page
from common.errors import BatonError, ConfigError
from common.messages import Role
from common.net.endpoints import check_socket_paths
from common.process import lifecycle
from common.process.descriptors import raise_limit, shortage
from common.process.notify import Notifier
from common.process.owned_files import own_folder
from common.process.watchdog_and_reload import Source
from common.telemetry import log
from common.telemetry.log import Logger

PR_SET_PDEATHSIG = 1
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
SERVICES = (Role.GATEWAY, Role.ROUTER, Role.PREFILL, Role.DECODE, Role.POOL, Role.HEALTH)
ROUTERS = ("router.control", "router.standby")
#: The keys that each daemon reads. A reload that changes only other keys is not reported by it.
SECTIONS = {
    Role.GATEWAY: ("fleet", "model", "models", "gateway", *ROUTERS),
    Role.ROUTER: ("fleet", "models", "router", "kv"),
    Role.PREFILL: ("fleet", "model", "models", "prefill.{name}", *ROUTERS),
    Role.DECODE: ("fleet", "model", "models", "decode.{name}", *ROUTERS),
    Role.POOL: ("fleet", "model", "models", "pool.{name}", *ROUTERS),
    Role.HEALTH: ("fleet", "health"),
}
HOST_TOOLS = {
    "up": "run a whole fleet on this machine; start here",
    "doctor": "is this host fit for a fleet? versions, limits, GPUs, UCX, ports",
    "install-systemd": "write systemd units for this host, and say what to do next",
}
CHECK = """\
Reads a fleet file as each daemon does, and looks at the model that it names: architecture, weights,
tokenizer, engine arguments. Takes a second; nothing is started, imported from vLLM or downloaded.
"""
CHECK_MORE = """\
examples:
  baton check --config fleet.toml
  BATON_MODEL__PATH=~/models/M baton check --config fleet.toml    another model
  baton config --reference | less    every key, and each engine argument of vLLM

exit status: 0 the fleet can be started, perhaps with warnings; 2 it cannot, and one line says what
to change
"""
#: Commands that read their own command line.
TOOLS = {
    "ctl": "look inside a running fleet and operate it",
    "rollout": "restart the workers one by one without losing a request",
    "keys": "make, list and revoke API keys",
    "keygen": "make and rotate the keys by which hosts know each other",
    "completion": "print what bash or zsh needs to complete this command",
    "bench": "load any OpenAI endpoint; bench crossover: does it pay?",
    "profile": "measure a live fleet's workers",
    "plan": "which fleet does a load need?",
}
FILE_TOOLS = {
    "check": "validate a fleet file and its model, without starting anything",
    "config": "print the effective configuration, and where each value came from",
}


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status, which is 2 for a configuration that cannot be used. Ends the process
    with status 2 for a command line that cannot."""
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
            return _printed(lambda: _print_config(parsed.config, reference=parsed.reference))
        return _serve(Role(parsed.command), parsed.config, parsed.name)
    except ConfigError as error:
        print(f"baton: {error.message}", file=sys.stderr)
        return 2


def _printed(tool: Callable[[], int]) -> int:
    """Returns the tool's exit status, or that of a broken pipe when the reader of its output has
    left, as `head` does."""
    try:
        try:
            return tool()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _host_tool(parsed: argparse.Namespace) -> int:
    if parsed.command == "up":
        _follow_supervisor()
        from services.up.main import main as tool
    elif parsed.command == "doctor":
        from services.up.doctor.main import main as tool
    else:
        from services.install.main import main as tool
    return tool(parsed)


def _parser() -> argparse.ArgumentParser:
    from services.install.main import add_arguments as add_install_arguments
    from services.up.doctor.main import add_arguments as add_doctor_arguments
    from services.up.main import add_arguments

    parser = argparse.ArgumentParser(
        prog="baton",
        description="Serve large language models with prefill and decode on separate workers.",
        epilog="Start with `baton up`, then `baton ctl status`.",
    )
    parser.add_argument("--version", action="version", version=f"baton {version('baton-serve')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    arguments_of = (add_arguments, add_doctor_arguments, add_install_arguments)
    for (command, about), add in zip(HOST_TOOLS.items(), arguments_of, strict=True):
        add(commands.add_parser(command, help=about))
    for command, about in TOOLS.items():
        commands.add_parser(command, help=about, add_help=False)
    for command, about in FILE_TOOLS.items():
        tool = commands.add_parser(command, help=about)
        if command == "check":
            tool.description, tool.epilog = CHECK, CHECK_MORE
            tool.formatter_class = argparse.RawDescriptionHelpFormatter
            tool.add_argument(
                "--config", type=Path, required=True, metavar="FILE", help="fleet file"
            )
            continue
        what = tool.add_mutually_exclusive_group(required=True)
        what.add_argument("--config", type=Path, metavar="FILE", help="fleet file")
        about_keys = "print what every key means, as in docs/configuration.md"
        what.add_argument("--reference", action="store_true", help=about_keys)
    for role in SERVICES:
        daemon = commands.add_parser(role.value, help=f"one {role} daemon, for systemd or compose")
        daemon.add_argument("--config", type=Path, required=True, metavar="FILE", help="fleet file")
        daemon.add_argument(
            "--name",
            default=role.value,
            metavar="NAME",
            help=f"this daemon's name; for a worker or pool its table [{role}.NAME]",
        )
    return parser


def _tool(command: str, arguments: list[str]) -> int:
    if command == "ctl":
        from services.ctl.main import main as tool
    elif command == "keys":
        from services.keys.main import main as tool
    elif command == "keygen":
        from services.keygen.main import main as tool
    elif command == "rollout":
        from services.rollout.main import main as tool
    elif command == "completion":
        from services.completion import main as completion

        daemons = [role.value for role in SERVICES]
        return completion(arguments, main, (*HOST_TOOLS, *TOOLS, *FILE_TOOLS, *daemons))
    else:
        from loadtest.main import main as measure

        return measure(command, arguments)
    return tool(arguments)


def _check(path: Path) -> int:
    from common.engine.vllm.argument_check import untested
    from common.engine.vllm.model_check import check_adapter_files, check_model

    config = configuration.load(path)
    check_socket_paths(config)
    for model in config.served:
        check_model(config.of_model(model))
        check_adapter_files(config.of_model(model))
    for sentence in untested(config):
        print(f"baton: warning: {sentence}", file=sys.stderr)
    pools = f", {len(config.pool)} pools" if config.pool else ""
    print(
        f"{path}: good. {', '.join(config.served)} on {len(config.prefill)} prefill and "
        f"{len(config.decode)} decode workers{pools}."
    )
    return 0


def _print_config(path: Path | None, *, reference: bool) -> int:
    if reference or path is None:
        print(reference_page(), end="")
        return 0
    config, sources = configuration.effective(path, os.environ)
    for key, value in configuration.flatten(config):
        print(f"{key} = {value}  # {sources.get(key, 'default')}")
    return 0


def _serve(role: Role, path: Path, name: str) -> int:
    _follow_supervisor()
    config = configuration.load(path)
    check_socket_paths(config)
    _own_run_dir(Path(config.fleet.run_dir))
    logger = log.configure(role.value, name, config.fleet.log_level)
    short = shortage(config, role, raise_limit())
    if short:
        logger.warning("descriptors.short", sentence="; ".join(short))
    sections = tuple(section.format(name=name) for section in SECTIONS[role])
    source = Source(config, lambda: configuration.load(path), sections)
    if role in (Role.PREFILL, Role.DECODE):
        return _serve_worker(role, source, name, logger)
    if role is Role.GATEWAY:
        from services.gateway.daemon import make as make_gateway

        return lifecycle.run(lambda: make_gateway(config, name, logger), logger, source)
    if role is Role.ROUTER:
        from services.router.daemon import make as make_router

        return lifecycle.run(lambda: make_router(config, name, logger), logger, source)
    if role is Role.POOL:
        from services.pool.daemon import make as make_pool

        config.pool_named(name)
        return lifecycle.run(lambda: make_pool(config, name, logger), logger, source)
    from services.health.daemon import make as make_health

    return lifecycle.run(lambda: make_health(config, name, logger), logger, source)


def _own_run_dir(run_dir: Path) -> None:
    """Raises ConfigError."""
    try:
        own_folder(run_dir)
    except OSError as error:
        raise ConfigError("fleet.run_dir", f"{run_dir}: {error.strerror}") from error


def _serve_worker(role: Role, source: Source, name: str, logger: Logger) -> int:
    """Opens the engine before the event loop starts, because vLLM forks and a process that forks
    must have no threads."""
    from common.engine.open import open_engine
    from common.engine.vllm.argument_check import untested

    for sentence in untested(source.running):
        logger.warning("engine.argument_untested", sentence=sentence)
    incarnation = secrets.token_hex(8)
    try:
        config = source.running.of_worker(role, name)
        engine = open_engine(config, role, name, incarnation, progress=Notifier().status)
    except BatonError as error:
        logger.error("daemon.failed", code=error.code, sentence=error.message)
        return 2 if isinstance(error, ConfigError) else 1
    from services.worker import make

    worker = (config, role, name, incarnation, engine, logger)
    return lifecycle.run(lambda: make(*worker), logger, source)


def _follow_supervisor() -> None:
    """Asks the kernel for a SIGTERM when the supervisor dies, so that no daemon outlives `baton
    up`, and no fleet the load test that started it."""
    supervisor = os.environ.get("BATON_SUPERVISOR_PID")
    if not supervisor:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(supervisor):
        sys.exit("baton: the supervisor died while this process started")


if __name__ == "__main__":
    sys.exit(main())
