"""Opens the CURVE keys that the configuration names."""

from __future__ import annotations

from pathlib import Path

from common.clock import SystemClock
from common.config import Config, KvConfig
from common.errors import ConfigError
from common.net.sockets import Curve
from common.process.watched_file import WatchedFile
from common.security.files import KEY, KV, PEERS, SECRET, read_peers, read_secret
from common.security.gate import Gate
from common.security.peers import AllowList
from common.security.refusals import Refusals
from common.telemetry.log import Logger


def open_curve(config: Config, log: Logger) -> Curve | None:
    """The keys of this process; None if the fleet has none. Raises ConfigError if this host's keys
    cannot be used."""
    if not config.security.keys_dir:
        return None
    folder = Path(config.security.keys_dir)
    secret = read_secret(folder / SECRET)

    def read(path: Path) -> AllowList:
        allowed = read_allow_list(path, secret.name)
        if secret.public not in allowed:
            sentence = f"{path} does not have this host's own key ({secret.name}); run baton keygen"
            raise ConfigError(KEY, sentence)
        return allowed

    peers = WatchedFile(folder / PEERS, read, "peers", log)
    return Curve(secret, Gate(peers, Refusals(log, SystemClock())))


def kv_secrets_file(config: Config, kv: KvConfig) -> str:
    """The file of the secrets by which workers authenticate each other; empty if they do not."""
    keys_dir = config.security.keys_dir
    authenticates = bool(keys_dir) if kv.authenticate == "auto" else kv.authenticate
    return str(Path(keys_dir) / KV) if authenticates else ""


def read_allow_list(path: Path, own: str) -> AllowList:
    """The allow-list as seen from the host named `own`. Raises ConfigError."""
    return AllowList(read_peers(path), own)
