"""Which router to ask: the main one, or a standby's socket beside it."""

from __future__ import annotations

from pathlib import Path

from common.config import Config
from common.endpoints import MAIN, admin_address
from common.errors import BatonError, Code

SUFFIX = ".admin.sock"
NEXT_SECONDS = 1.0


def sockets(config: Config, router: str) -> list[str]:
    """Admin addresses to try in turn; all there are when no router is named. Raises
    BatonError(NOT_FOUND)."""
    main = admin_address(config)
    beside = sorted(Path(main.removeprefix("ipc://")).parent.glob(f"*{SUFFIX}"))
    known = {MAIN: main} | {path.name.removesuffix(SUFFIX): f"ipc://{path}" for path in beside}
    if not router:
        return list(known.values())
    if router not in known:
        raise BatonError(Code.NOT_FOUND, f"no router {router!r}; there are: {', '.join(known)}")
    return [known[router]]


def patience(timeout: float, *, last: bool) -> float:
    """Seconds to wait for an answer while there are others to ask."""
    return timeout if last else min(timeout, NEXT_SECONDS)
