"""The files of CURVE: a host's secret and the allow-list of all hosts. `baton keygen` writes them.

Theory of operation: every host has one key pair, which all its daemons use for binding and for
connecting. A folder at the same path on every host (`[security] keys_dir`) holds `secret.json` with
this host's own pair, and `peers.json` with the public keys of all hosts and the addresses that they
bind. A host that connects must be in the list. A host that is connected to must hold the key that
the list has for its address, so that no other host of the fleet can act as the router. A host has
two keys in the list while one replaces the other. `roles` and `names` of an entry limit for whom
the host may speak (`peers.py`).

The KV plane knows no CURVE. There the workers of a fleet prove to each other that they know one
secret of the whole fleet, in `kv.json`, the same file on every host. It holds two secrets while one
replaces the other.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from common.config import NAME_PATTERN
from common.errors import ConfigError
from common.process.owned_files import open_trusted, replace_own

OTHERS, OTHERS_WRITE = 0o007, 0o002
FILE_BYTES_MAX = 1 << 20
PEERS_MAX = 1024
NAMES_MAX = 256
KEYS_MAX = 2
NAMED_ROLES: tuple[HostRole, ...] = ("gateway", "prefill", "decode", "pool")
SECRET, NEXT_SECRET, PEERS, KV = "secret.json", "secret.next.json", "peers.json", "kv.json"
KEY = "security.keys_dir"

Z85 = Annotated[str, Meta(pattern=r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$")]
HostName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Address = Annotated[str, Meta(min_length=1, max_length=255)]
HostRole = Literal["router", "gateway", "prefill", "decode", "pool"]
DaemonName = Annotated[str, Meta(pattern=NAME_PATTERN)]


class Secret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host's key pair, each half 32 bytes as Z85 (ZeroMQ RFC 32)."""

    version: Literal[1] = 1
    name: HostName
    public: Z85
    secret: Z85

    def __repr__(self) -> str:
        return f"Secret(name={self.name!r}, public={self.public!r})"


class HostKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host of the allow-list."""

    name: HostName
    #: Its public keys, the oldest first.
    keys: Annotated[list[Z85], Meta(min_length=1, max_length=KEYS_MAX)]
    #: Addresses of the endpoints that it binds, without scheme and port.
    addresses: list[Address] = []
    #: Roles of the daemons that may run on it; empty = any.
    roles: list[HostRole] = []
    #: Names of the gateways and workers that run on it and on no other host; empty = any that no
    #: other entry has.
    names: Annotated[list[DaemonName], Meta(max_length=NAMES_MAX)] = []


class PeersFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The allow-list."""

    version: Literal[1] = 1
    peers: Annotated[list[HostKeys], Meta(max_length=PEERS_MAX)] = []


class KvSecrets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fleet's secrets for the KV plane."""

    version: Literal[1] = 1
    #: 256 random bits each, in hex, the oldest first.
    secrets: Annotated[
        list[Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]],
        Meta(min_length=1, max_length=KEYS_MAX),
    ]

    def __repr__(self) -> str:
        return f"KvSecrets({len(self.secrets)} secrets)"


F = TypeVar("F", Secret, PeersFile, KvSecrets)


def read_secret(path: Path) -> Secret:
    """Raises ConfigError if the file cannot be read, can be read by every user, or is no such
    file."""
    return _read(path, Secret, closed=True)


def read_peers(path: Path) -> PeersFile:
    """Raises ConfigError if the file cannot be read, can be written by every user, is no such file,
    or has anything twice."""
    file = _read(path, PeersFile, closed=False)
    check_peers(file, path)
    return file


def read_kv_secrets(path: Path) -> KvSecrets:
    """As `read_secret`."""
    return _read(path, KvSecrets, closed=True)


def check_peers(file: PeersFile, path: Path) -> None:
    """Raises ConfigError if a host, key or address is in it twice."""
    for what, values in (
        ("host", [peer.name for peer in file.peers]),
        ("key", [key for peer in file.peers for key in peer.keys]),
        ("address", [address for peer in file.peers for address in peer.addresses]),
        ("name", [f"{role} {name}" for peer in file.peers for role, name in named(peer)]),
    ):
        twice = sorted(value for value, count in Counter(values).items() if count > 1)
        if twice:
            raise ConfigError(KEY, f"{path} has the {what} {twice[0]} twice")


def named(peer: HostKeys) -> list[tuple[str, str]]:
    """Role and name of each daemon that this entry alone may have."""
    return [(role, name) for role in peer.roles or NAMED_ROLES for name in peer.names]


def _read(path: Path, kind: type[F], *, closed: bool) -> F:
    try:
        with open_trusted(path, secret=closed) as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        sentence = f"{path} cannot be read: {error.strerror}; `baton keygen add` makes it"
        raise ConfigError(KEY, sentence) from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(KEY, f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        sentence = f"{path} is not a {kind.__name__} file: {error}; `baton keygen` writes it"
        raise ConfigError(KEY, sentence) from error


def write(path: Path, content: Secret | PeersFile | KvSecrets) -> None:
    """Replaces the file as a whole. Raises ConfigError."""
    data = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    try:
        replace_own(path, data)
    except OSError as error:
        raise ConfigError(KEY, f"{path} cannot be written: {error.strerror}") from error
