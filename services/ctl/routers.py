"""Finds the routers of a fleet by their admin sockets, and asks the first that answers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from common.config import Config
from common.errors import BatonError, Code, ConfigError
from common.net.admin_client import ask
from common.net.endpoints import MAIN, admin_address

SUFFIX = ".admin.sock"
SCHEME = "ipc://"
#: How long a router may take to answer while there is another to ask.
NEXT_SECONDS = 1.0


class RefusalError(BatonError):
    """The router refused the question; `fields` is its error as it sent it."""

    def __init__(self, fields: dict[str, str]) -> None:
        message = fields.get("message", "the router refused and gave no reason")
        super().__init__(Code.INVALID_REQUEST, message)
        self.fields = fields


def addresses(config: Config, router: str) -> list[str]:
    """Admin addresses in the order to try them: that of the named router, or those of all.

    Raises ConfigError for a name that no router has, and for a run directory whose path is too long
    or that this user may not read.
    """
    main = admin_address(config)
    folder = Path(main.removeprefix(SCHEME)).parent
    try:
        standbys = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
        Path(main.removeprefix(SCHEME)).exists()
    except PermissionError as error:
        raise _closed(folder) from error
    except OSError:
        standbys = []
    known = {MAIN: main} | {p.name.removesuffix(SUFFIX): f"{SCHEME}{p}" for p in standbys}
    if not router:
        return list(known.values())
    if router not in known:
        raise ConfigError("--router", f"no router {router!r}; there are: {', '.join(known)}")
    return [known[router]]


def _closed(path: Path) -> ConfigError:
    sentence = "this user may not use it; be the daemons' user, or a member of its group"
    return ConfigError(str(path), sentence)


def ask_first(routers: list[str], seconds: float, verb: str, args: dict[str, Any]) -> Any:
    """The result of the first router that answers within `seconds`. Raises RefusalError,
    BatonError(ROUTER_UNREACHABLE), and ConfigError if this user may not use the sockets."""
    present = [address for address in routers if Path(address.removeprefix(SCHEME)).exists()]
    if not present:
        raise BatonError(Code.ROUTER_UNREACHABLE, f"there is no router socket at {routers[0]}")
    sockets = [Path(address.removeprefix(SCHEME)) for address in present]
    if not any(os.access(path, os.W_OK, effective_ids=True) for path in sockets):
        raise _closed(sockets[0])
    while True:
        address = present.pop(0)
        patience = min(seconds, NEXT_SECONDS) if present else seconds
        try:
            answer = asyncio.run(ask(address, verb, args, patience))
        except BatonError as error:
            if not present or error.code is not Code.ROUTER_UNREACHABLE:
                raise
            continue
        if not answer.ok:
            raise RefusalError(answer.error)
        return answer.result
