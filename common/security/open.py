"""From the configuration to the keys of one process."""

from __future__ import annotations

from pathlib import Path

from common.clock import SystemClock
from common.config import Config
from common.errors import ConfigError
from common.log import Logger
from common.security.files import KEY, PEERS, SECRET, read_peers, read_secret
from common.security.gate import Gate
from common.security.peers import AllowList
from common.security.refusals import Refusals
from common.sockets import Curve
from common.watched import WatchedFile


def open_curve(config: Config, log: Logger) -> Curve | None:
    """None where the fleet has no keys. Raises ConfigError when this host's cannot be used."""
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


def read_allow_list(path: Path, own: str) -> AllowList:
    """As seen from the host named `own`. Raises ConfigError."""
    return AllowList(read_peers(path), own)
