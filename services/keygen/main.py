"""`baton keygen`: makes, replaces and revokes the keys by which hosts know each other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from common.errors import ConfigError
from common.security.files import HostKeys, HostRole
from services.keygen.folder import KeyFolder

ROLES = get_args(HostRole)
EXAMPLES = """\
examples:
  baton keygen add --dir keys --roles router,gateway node-a=10.0.0.1
  baton keygen add --dir keys --roles prefill,decode --names p0,d0 node-b=10.0.0.2,10.1.0.2
  scp -r keys/node-a/. node-a:/etc/baton/curve/       and so on, each host its own folder
  [security] keys_dir = "/etc/baton/curve"            in the fleet file

  baton keygen rotate --dir keys node-a     1. copy every peers.json; both keys are good now
                                            2. node-a: mv secret.next.json secret.json, restart
  baton keygen retire --dir keys node-a     3. copy every peers.json; the old key is refused
  baton keygen revoke --dir keys node-b     copy every peers.json; node-b is refused

  baton keygen rotate-kv --dir keys         1. copy every kv.json; both secrets are good now
  baton keygen retire-kv --dir keys         2. copy every kv.json; the old secret is refused

Daemons read a changed peers.json or kv.json within a second; a changed secret.json needs their
restart.
"""


def main(argv: list[str]) -> int:
    """Returns the exit status; 2 for what the caller can mend."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(KeyFolder(arguments.dir), arguments)
    except ConfigError as error:
        print(f"baton: {error.message}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument(
        "--dir", type=Path, required=True, metavar="DIR", help="folder with one folder a host"
    )
    parser = argparse.ArgumentParser(
        prog="baton keygen",
        description="Keys by which the hosts of a fleet know each other (CURVE).",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("add", parents=[where], help="make hosts' keys, or set addresses")
    add.set_defaults(run=_add)
    add.add_argument(
        "hosts", nargs="+", metavar="NAME[=ADDRESS,...]", help="host and the addresses it binds"
    )
    add.add_argument(
        "--roles", metavar="ROLE,...", help=f"it speaks for these only: {', '.join(ROLES)}"
    )
    add.add_argument(
        "--names",
        metavar="NAME,...",
        help="its daemons; no other host has these names",
    )
    for command, run, what in (
        ("list", _list, "hosts, addresses, public keys"),
        ("rotate", _rotate, "give a host a second key"),
        ("retire", _retire, "end a rotation: only the new key is good"),
        ("revoke", _revoke, "forget a host"),
        ("rotate-kv", _rotate_kv, "give the fleet a second secret for KV"),
        ("retire-kv", _retire_kv, "end that rotation: only the new secret is good"),
    ):
        chosen = commands.add_parser(command, parents=[where], help=what)
        chosen.set_defaults(run=run)
        if run in (_rotate, _retire, _revoke):
            chosen.add_argument("host")
    return parser


def _add(folder: KeyFolder, arguments: argparse.Namespace) -> None:
    for host in arguments.hosts:
        name, given, addresses = host.partition("=")
        new = folder.add(
            name,
            _parts(addresses) if given else None,
            _parts(arguments.roles),
            _parts(arguments.names),
        )
        peer = folder.peer(name)
        print(
            f"{name}: {'a new key' if new else 'its key stays'}, "
            f"at {','.join(peer.addresses) or 'no address'}, speaks for {_rights(peer)}"
        )


def _parts(text: str | None) -> list[str] | None:
    """None: the option was not given; empty: whatever it set before no longer holds."""
    return None if text is None else [part for part in text.split(",") if part]


def _rights(peer: HostKeys) -> str:
    return f"{','.join(peer.roles) or 'any role'} {','.join(peer.names) or 'of any name'}"


def _list(folder: KeyFolder, _arguments: argparse.Namespace) -> None:
    row = "{:<16}  {:<24}  {:<32}  {}"
    print(row.format("HOST", "ADDRESSES", "SPEAKS FOR", "PUBLIC KEYS, OLDEST FIRST"))
    for peer in folder.peers:
        addresses, keys = ",".join(peer.addresses) or "-", " ".join(peer.keys)
        print(row.format(peer.name, addresses, _rights(peer), keys))


def _rotate(folder: KeyFolder, arguments: argparse.Namespace) -> None:
    path = folder.rotate(arguments.host)
    print(f"{path} is its next secret; copy every peers.json first, then it goes in as secret.json")


def _retire(folder: KeyFolder, arguments: argparse.Namespace) -> None:
    folder.retire(arguments.host)
    print(f"{arguments.host} has its new key only; copy every peers.json")


def _revoke(folder: KeyFolder, arguments: argparse.Namespace) -> None:
    folder.revoke(arguments.host)
    print(f"{arguments.host} is forgotten; copy every peers.json")
    print("it knows the fleet's secret for KV: `baton keygen rotate-kv`, then `retire-kv`")


def _rotate_kv(folder: KeyFolder, _arguments: argparse.Namespace) -> None:
    folder.rotate_kv()
    print("there is a second secret for KV; copy every kv.json, then `baton keygen retire-kv`")


def _retire_kv(folder: KeyFolder, _arguments: argparse.Namespace) -> None:
    folder.retire_kv()
    print("only the new secret for KV is good; copy every kv.json")
