"""`baton ctl`: asks the router's admin socket one question and prints the answer."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from common import config as configuration
from common.config import Config, FleetConfig, default_run_dir
from common.config.gateway import is_own
from common.errors import BatonError, Code, ConfigError
from common.net.endpoints import config_of_cell
from common.process.flapping_file import read_flapping
from services.ctl.parser import EXIT_USAGE, Command, parse
from services.ctl.repeat import follow, repeat
from services.ctl.routers import RefusalError, addresses, ask_first
from services.ctl.verb import Ask

STATUS = "status"
OK, FAILED, UNREACHABLE, INTERRUPTED = 0, 1, 3, 130
CLEAR = "\x1b[H\x1b[2J"
#: The exit status by error; that of any other error is FAILED.
EXITS = {Code.CONFIG_INVALID: EXIT_USAGE, Code.ROUTER_UNREACHABLE: UNREACHABLE}


def main(argv: list[str]) -> int:
    """Returns the exit status. Ends the process by SystemExit when `argv` cannot be used."""
    command = parse(argv)
    try:
        ask = _asker(_config(command), command)
        if command.watch or command.follow:
            say, sleep = partial(print, flush=True), partial(time.sleep, command.every)
            return repeat(_shows(command, ask), say, sleep)
        print(_answer(command, ask))
    except BatonError as error:
        if command.json and isinstance(error, RefusalError):
            print(json.dumps({"error": error.fields}))
        fix = _fix(command) if error.code is Code.ROUTER_UNREACHABLE else ""
        print(f"baton ctl: {error.message}{fix}", file=sys.stderr)
        return EXITS.get(error.code, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def _config(command: Command) -> Config:
    """Raises ConfigError."""
    run_dir = command.run_dir or default_run_dir()
    if command.cell:
        file = command.config or run_dir / "fleet.toml"
        return _of_cell(configuration.load(file), command.cell)
    if command.config is not None:
        return configuration.load(command.config)
    return Config(fleet=FleetConfig(run_dir=str(run_dir)))


def _of_cell(config: Config, cell: str) -> Config:
    cells = config.gateway.cells
    if cell not in cells:
        names = ", ".join(cells) or "none in the fleet file"
        raise ConfigError("--cell", f"no cell {cell!r}; there are: {names}")
    if not (cells[cell].run_dir or is_own(cells[cell])):
        raise ConfigError("--cell", f"the fleet file says no run_dir of {cell}; ask on its host")
    return config_of_cell(config, cell)


def _asker(config: Config, command: Command) -> Ask:
    """Asks the routers. To `status` it adds what the supervisor of this host has to say. Raises
    ConfigError."""
    run_dir, routers = Path(config.fleet.run_dir), addresses(config, command.router)

    def ask(verb: str, args: dict[str, Any]) -> Any:
        try:
            result = ask_first(routers, command.timeout, verb, args)
        except BatonError as error:
            if error.code is Code.ROUTER_UNREACHABLE:
                error.message += "".join(f"; {n} {s}" for n, s in read_flapping(run_dir).items())
            raise
        flapping = read_flapping(run_dir) if verb == STATUS else {}
        return {**result, "flapping": flapping} if flapping else result

    return ask


def _answer(command: Command, ask: Ask) -> str:
    """Raises BatonError."""
    verb = command.verb
    if verb.run is not None:
        return verb.run(ask, command.args)
    result = ask(verb.name, command.args)
    if not command.json:
        # A router of another version may answer in another shape: then JSON is shown.
        with contextlib.suppress(KeyError, TypeError, IndexError, msgspec.ValidationError):
            return (f"cell {command.cell}\n" if command.cell else "") + verb.render(result)
    return json.dumps(result, indent=None if command.json and command.watch else 2)


def _shows(command: Command, ask: Ask) -> Callable[[], str]:
    """What `--watch` and `--follow` print each time."""
    if command.follow:
        render = _json_lines if command.json else command.verb.render
        return follow(partial(ask, command.verb.name), command.args, render)
    clear = CLEAR if sys.stdout.isatty() and not command.json else ""
    return lambda: clear + _answer(command, ask)


def _json_lines(result: Any) -> str:
    return "\n".join(json.dumps(event) for event in result["events"])


def _fix(command: Command) -> str:
    if command.run_dir is None and command.config is None:
        return "; start a fleet with `baton up`, or name one with --run-dir DIR or --config FILE"
    return "; is the fleet running, and is this its run directory?"
