"""The command line of `baton ctl`, made of the verbs' declarations.

Theory of operation: the options of every verb may stand anywhere, so they are read first; then the
first word that is no option is the verb, and its parser reads the rest. A word NAME=VALUE means the
option `--NAME`, or the bare word of that name. A name that the verb does not declare goes to the
router, which knows whether it is one.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from pathlib import Path
from typing import Any, NoReturn

from services.ctl.registry import VERBS
from services.ctl.verb import Verb, value

PROG = "baton ctl"
EXIT_USAGE = 2
SECONDS_MAX = 3600.0
PAIR = re.compile(r"([a-z_]+)=(.*)", re.DOTALL)
UNDECLARED = "a verb that this version of `baton ctl` does not know; the router may"
EPILOG = """\
`baton ctl VERB --help` shows a verb's arguments and examples; NAME=VALUE means --NAME VALUE.

examples:
  baton ctl status
  baton ctl workers --watch
  baton ctl explain --slow                # then: baton ctl explain ID
  baton ctl workers decode --json | jq '.[] | {name, kv_used}'

exit status: 0 answered (--watch and --follow: after Ctrl-C), 1 the verb failed,
2 the command line or the run directory cannot be used, 3 no router answers
"""


class Command(argparse.Namespace):
    """What was typed, with the defaults of the options of every verb."""

    verb: Verb
    #: The verb's arguments, as the router takes them.
    args: dict[str, Any]
    json: bool = False
    watch: bool = False
    follow: bool = False
    #: Seconds between two questions of `--watch` and `--follow`.
    every: float = 2.0
    #: Seconds to wait for an answer.
    timeout: float = 5.0
    run_dir: Path | None = None
    config: Path | None = None
    #: The cell's name; empty for the fleet of the file itself.
    cell: str = ""
    #: The router's name; empty for the first one that answers.
    router: str = ""


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        raw, unset = argparse.RawDescriptionHelpFormatter, argparse.SUPPRESS
        options |= {"formatter_class": raw, "argument_default": unset, "allow_abbrev": False}
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Ends the process after one sentence."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def parse(argv: list[str]) -> Command:
    """Ends the process by SystemExit after `--help`, or when the command line cannot be used."""
    command, general = Command(), _general()
    _, words = general.parse_known_args(argv, command)
    name = next((word for word in words if not word.startswith("-")), "")
    verb = VERBS.get(name) or Verb(name, UNDECLARED)
    parser = _parsers(VERBS | {name: verb} if name else VERBS, general)[name]
    if name:
        words.remove(name)
    words, pairs = _split(verb, words)
    command.verb, command.args = verb, vars(parser.parse_args(words)) | pairs
    command.follow = command.args.pop("follow", False)
    if not name:
        parser.error("name a verb, for example: baton ctl status")
    if command.run_dir is not None and command.config is not None:
        parser.error("give --run-dir or --config, not both")
    if command.follow and command.watch:
        parser.error("--follow shows what is new by itself; leave --watch out")
    if command.watch and verb.run is not None:
        parser.error(f"{name} is asked once; `{PROG} status --watch` shows the same")
    return command


def _parsers(verbs: dict[str, Verb], general: _Parser) -> dict[str, _Parser]:
    """A parser for each verb, and under the empty name the one that lists them."""
    top = _Parser(
        prog=PROG,
        usage="%(prog)s VERB [ARGUMENT...] [OPTION...]",
        description="Look inside a running fleet and operate it, through its router.",
        epilog=EPILOG,
        parents=[general],
    )
    listed = top.add_subparsers(title="verbs", metavar="VERB", prog=PROG)
    parsers = {"": top}
    for name, verb in verbs.items():
        bare = [f"[{rest['metavar']}]" for arg, rest in verb.arguments if not arg.startswith("-")]
        parsers[name] = listed.add_parser(
            name,
            usage=" ".join(["%(prog)s", *bare, "[OPTION...]"]),
            help=verb.help,
            description=verb.help,
            epilog="\n  ".join(["examples:", *(f"{PROG} {line}" for line in verb.examples)]),
            parents=[general],
        )
        for argument, rest in verb.arguments:
            parsers[name].add_argument(argument, **rest)
    return parsers


def _general() -> _Parser:
    """The options of every verb. What is not typed stays unset, so that `Command` has its say."""
    parser = _Parser(prog=PROG, add_help=False)
    add = parser.add_argument_group("options of every verb").add_argument
    add("--json", action="store_true", help="the router's answer, for scripts")
    add("--watch", action="store_true", help="ask again until Ctrl-C; one line each as JSON")
    add("--every", type=_seconds, metavar="SECONDS", help="between two questions (2)")
    add("--timeout", type=_seconds, metavar="SECONDS", help="to wait for an answer (5)")
    add("--run-dir", type=Path, metavar="DIR", help="the fleet's (default: $BATON_RUN_DIR)")
    add("--config", type=Path, metavar="FILE", help="the fleet file instead")
    add("--cell", metavar="NAME", help="of a gateway that serves several cells (default: its own)")
    add("--router", metavar="NAME", help="main, or a standby (default: the first that answers)")
    return parser


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) <= SECONDS_MAX:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds, up to {SECONDS_MAX:g}")


def _split(verb: Verb, words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Words for the verb's parser, and pairs for the router: those that the verb does not declare,
    and those that could have been typed without a name."""
    declared = {
        name.lstrip("-").replace("-", "_"): name
        for name, rest in verb.arguments
        if "action" not in rest
    }
    plain: list[str] = []
    pairs: dict[str, Any] = {}
    for word in words:
        match = PAIR.fullmatch(word)
        if match is None or verb.run is not None:
            plain.append(word)
        elif match[1] not in declared:
            pairs[match[1]] = value(match[2])
        else:
            name = declared[match[1]]
            if name.startswith("-"):
                plain.append(f"{name}={match[2]}")
            else:
                pairs[name] = match[2]
    return plain, pairs
