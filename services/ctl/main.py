"""`baton ctl`: asks the router's admin socket one question and shows the answer.

Exit status: 0 answered, 1 the verb failed, 2 the command line, 3 no router answers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from common import config as configuration
from common.admin import AdminAnswer, ask
from common.config import Config, FleetConfig, default_run_dir
from common.errors import BatonError, Code
from services.ctl.again import Terminal, follow, watch
from services.ctl.command import READY, Command, UsageError, parse
from services.ctl.ready import ready
from services.ctl.renderers import VERBS
from services.ctl.routers import patience, sockets
from services.ctl.verbs.events import lines as event_lines

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
HELP = """\
usage: baton ctl VERB [ARGS] [--json] [--run-dir DIR | --config FILE] [--timeout SECONDS]

Looks inside a running fleet, through its router's admin socket.

  status              can it serve, how full is it, what was refused and dropped
  ready [WORKER...]   exit status 0 if it can serve, or if these workers are ready; else 1
  workers [ROLE]      every worker: state, load, KV promised and used
  requests [STATE]    what is queued and running now (also limit=N)
  explain ID          one request's timeline and why it went where it went;
                      the start of an id is enough
  explain --slow      the slowest 1 % (by=ttft, by=tpot or by=total); --failed, --refused and
                      --recent list those
  drain WORKER        place nothing new there, let it finish; again: how far it is
  resume WORKER       end a drain
  evict WORKER        drop what it holds, now (evict request=ID: one request)
  quarantine [clear]  pairs that do not hand KV over now; let them try again
  policy [NAME]       how workers are chosen, and which policies there are; a NAME sets it now
                      (also remote_prefill=auto|always|never)
  limits [NAME=VALUE] the limits in force, and sets them
  keys                API keys in use, and what is left to each
  kv [WORKER]         every hold of KV for another worker
  pairs               what each prefill worker hands to each decode worker
  reload              the router reads the fleet file again
  events [after=N]    what the router noted last
  help [VERB]         all that this router can be asked

--json      the router's answer as JSON, for scripts
--watch     ask again and again, until Ctrl-C; with --json a line each time
--follow    events: go on with what comes, until Ctrl-C
--every     seconds between two questions of --watch and --follow (2)
--run-dir   the fleet's run directory (default: $BATON_RUN_DIR, else where `baton up` puts it)
--config    the fleet file instead
--router    of several, this one: main, or a standby's name (default: the first that answers)
--timeout   seconds to wait for an answer (5)

examples:
  baton ctl status
  baton ctl requests queued limit=20
  baton ctl explain 3f2a9c
  baton ctl workers decode --json | jq '.[] | {name, kv_used}'
  baton ctl workers --watch
  baton ctl events --follow
  baton ctl status --config /etc/baton/fleet.toml

exit status: 0 answered, 1 the verb failed, 2 wrong command line, 3 no router answers
(--watch and --follow: 0 after Ctrl-C; a router that is away is asked until it is back)
"""


def main(argv: list[str]) -> int:
    try:
        command = parse(argv)
        if command.help:
            print(HELP, end="")
            return OK
        addresses = sockets(_config(command), command.router)
    except UsageError as error:
        return _complain(USAGE, f"{error} (baton ctl --help shows more)")
    except BatonError as error:
        return _complain(USAGE, error.message)
    if command.watch or command.follow:
        return _again(addresses, command)
    try:
        if command.verb == READY:
            return _judge(addresses, command)
        answer = _ask(addresses, command)
    except BatonError as error:
        if error.code is not Code.ROUTER_UNREACHABLE:
            return _complain(FAILED, error.message)
        return _complain(UNREACHABLE, f"{error.message}; {_fix(command)}")
    return _show(command, answer)


def _config(command: Command) -> Config:
    if command.config is not None:
        if command.run_dir is not None:
            raise UsageError("give --run-dir or --config, not both")
        return configuration.load(command.config)
    run_dir = command.run_dir or default_run_dir()
    return Config(fleet=FleetConfig(run_dir=str(run_dir)))


def _ask(addresses: list[str], command: Command) -> AdminAnswer:
    """Of the first that answers."""
    there = [each for each in addresses if Path(each.removeprefix("ipc://")).exists()]
    if not there:
        raise BatonError(Code.ROUTER_UNREACHABLE, f"there is no router socket at {addresses[0]}")
    for address in there[:-1]:
        seconds = patience(command.timeout, last=False)
        try:
            return asyncio.run(ask(address, command.verb, command.args, seconds))
        except BatonError as error:
            if error.code is not Code.ROUTER_UNREACHABLE:
                raise
    seconds = patience(command.timeout, last=True)
    return asyncio.run(ask(there[-1], command.verb, command.args, seconds))


def _result(addresses: list[str], command: Command) -> Any:
    """Raises BatonError for a refusal, too."""
    answer = _ask(addresses, command)
    if not answer.ok:
        sentence = answer.error.get("message", "the router gave no reason")
        raise BatonError(Code.INVALID_REQUEST, sentence)
    return answer.result


def _judge(addresses: list[str], command: Command) -> int:
    good, sentence = ready(
        lambda verb: _result(addresses, replace(command, verb=verb)), command.names
    )
    if not good:
        return _complain(FAILED, sentence)
    print(sentence)
    return OK


def _again(addresses: list[str], command: Command) -> int:
    def ask_with(args: dict[str, Any]) -> Any:
        return _result(addresses, replace(command, args=args))

    person = sys.stdout.isatty() and not command.json
    terminal = Terminal(partial(print, flush=True), time.sleep, clears=person and command.watch)
    if command.follow:
        lines = _json_lines if command.json else event_lines
        return follow(ask_with, command.args, lines, command.every, terminal)
    text = json.dumps if command.json else partial(_text, command)
    return watch(ask_with, command.args, text, command.every, terminal)


def _json_lines(result: Any) -> list[str]:
    return [json.dumps(event) for event in result["events"]]


def _fix(command: Command) -> str:
    if command.run_dir is None and command.config is None:
        return "start a fleet with `baton up`, or name one with --run-dir DIR or --config FILE"
    return "is the fleet running, and is this its run directory?"


def _show(command: Command, answer: AdminAnswer) -> int:
    if not answer.ok:
        error = answer.error
        if command.json:
            print(json.dumps({"error": error}))
        return _complain(FAILED, error.get("message", "the router gave no reason"))
    print(_text(command, answer.result))
    return OK


def _text(command: Command, result: Any) -> str:
    shown = VERBS.get(command.verb)
    if shown is None or command.json:
        return json.dumps(result, indent=2)
    try:
        return shown.render(result)
    except (KeyError, TypeError, IndexError):
        return json.dumps(result, indent=2)


def _complain(status: int, sentence: str) -> int:
    print(f"baton ctl: {sentence}", file=sys.stderr)
    return status
