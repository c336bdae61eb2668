"""`baton keys`: makes, lists and revokes API keys. Running gateways notice within a second."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from common import config as configuration
from common.errors import ConfigError
from common.security.api_keys import PRIORITIES, KeyRecord, edited, new_key, read_keys

EXAMPLES = """\
examples:
  baton keys add --file keys.json --tenant research          prints the key, this once
  baton keys add --config fleet.toml --tenant shop --priority interactive --requests-per-min 600
  baton keys list --file keys.json
  baton keys revoke --file keys.json 3f9a12c44d01

Name the file in [gateway] keys_file; running gateways read a changed file within a second.
"""


def main(argv: list[str]) -> int:
    """Returns the exit status; 2 for what the caller can mend."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(_file(arguments), arguments)
    except ConfigError as error:
        print(f"baton: {error.message}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    where = argparse.ArgumentParser(add_help=False)
    file = where.add_mutually_exclusive_group(required=True)
    file.add_argument("--file", type=Path, metavar="KEYS", help="the key file")
    file.add_argument("--config", type=Path, metavar="FILE", help="a fleet file that names it")
    parser = argparse.ArgumentParser(
        prog="baton keys",
        description="Make, list and revoke API keys.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("add", parents=[where], help="make a key and print it once")
    add.set_defaults(run=_add)
    add.add_argument("--tenant", required=True, help="whose it is: keys of a tenant share")
    add.add_argument(
        "--priority",
        choices=tuple(PRIORITIES),
        default="standard",
        help="the best class it may ask for (standard)",
    )
    for flag, kind, what in (
        ("--requests-per-min", float, "requests a minute"),
        ("--tokens-per-min", float, "tokens a minute, prompt and answer"),
        ("--concurrency", int, "requests at a time"),
    ):
        add.add_argument(flag, type=kind, default=0, metavar="N", help=f"{what}; 0 = no limit")
    add.add_argument(
        "--kv-budget-mib",
        type=float,
        default=0,
        metavar="N",
        help="MiB of KV that a request is promised at a time; 0 = as [limits] says",
    )
    add.add_argument("--weight", type=float, default=1.0, help="share of a busy fleet (1)")
    add.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="a model that it may ask for, and no other; may be given several times (all)",
    )
    listed = "ids and limits; no secret is ever shown"
    commands.add_parser("list", parents=[where], help=listed).set_defaults(run=_list)
    revoke = commands.add_parser("revoke", parents=[where], help="refuse a key from now on")
    revoke.set_defaults(run=_revoke)
    revoke.add_argument("id", help="the key's public id, the part between the underscores")
    return parser


def _file(arguments: argparse.Namespace) -> Path:
    if arguments.file is not None:
        return Path(arguments.file)
    named = configuration.load(arguments.config).gateway.keys_file
    if not named:
        raise ConfigError("gateway.keys_file", f"{arguments.config} names no key file")
    return Path(named)


def _add(path: Path, arguments: argparse.Namespace) -> None:
    key, key_id, sha256 = new_key()
    fields = {
        name: vars(arguments)[name]
        for name in (
            "tenant", "priority", "requests_per_min", "tokens_per_min", "concurrency", "weight",
            "kv_budget_mib",
        )
    }  # fmt: skip
    created = datetime.now(UTC).strftime("%Y-%m-%d")
    try:
        record = msgspec.convert(
            {
                "id": key_id,
                "sha256": sha256,
                "created": created,
                "models": arguments.model,
                **fields,
            },
            KeyRecord,
        )
    except msgspec.ValidationError as error:
        raise ConfigError("key", str(error)) from error
    with edited(path) as records:
        records.append(record)
    print(key)
    print(f"added {key_id} to {path}; the key above is not shown again", file=sys.stderr)


def _list(path: Path, _arguments: argparse.Namespace) -> None:
    row = "{:<12}  {:<16}  {:<11}  {:>9}  {:>11}  {:>8}  {:>6}  {:>6}  {:<10}  {}"
    print(row.format(
        "ID", "TENANT", "PRIORITY", "REQ/MIN", "TOKENS/MIN", "AT ONCE", "WEIGHT", "KV MIB",
        "CREATED", "MODELS",
    ))  # fmt: skip
    for key in read_keys(path).keys:
        amounts = [
            f"{amount:g}" if amount else "-"
            for amount in (key.requests_per_min, key.tokens_per_min, key.concurrency)
        ]
        print(row.format(
            key.id, key.tenant, key.priority, *amounts, f"{key.weight:g}",
            f"{key.kv_budget_mib:g}" if key.kv_budget_mib else "-", key.created,
            ", ".join(key.models) or "all",
        ))  # fmt: skip


def _revoke(path: Path, arguments: argparse.Namespace) -> None:
    read_keys(path)
    with edited(path) as records:
        left = [record for record in records if record.id != arguments.id]
        if len(left) == len(records):
            raise ConfigError("id", f"{path} has no key {arguments.id}; see `baton keys list`")
        records[:] = left
    print(f"revoked {arguments.id}", file=sys.stderr)
