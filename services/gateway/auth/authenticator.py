"""The key file in use, read again when it changes.

A stream keeps running when its key is revoked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.process.watched_file import WatchedFile
from common.security.api_keys import read_keys
from common.telemetry.log import Logger
from services.gateway.auth.caller import ANONYMOUS, Caller
from services.gateway.auth.ring import KeyRing


class Authenticator:
    """With an empty `path` every caller is anonymous; the configuration has checked that this is
    wanted. Raises ConfigError when the first reading fails."""

    def __init__(self, path: str, log: Logger) -> None:
        self._ring = WatchedFile(Path(path), _ring, "keys", log) if path else None

    def caller(self, authorization: Sequence[str], api_key: Sequence[str]) -> Caller:
        """Raises BatonError(INVALID_API_KEY)."""
        return ANONYMOUS if self._ring is None else self._ring.value.caller(authorization, api_key)

    def holder(self, key_id: str) -> Caller | None:
        """Who has the key with this public id, for work that goes on without a connection. None:
        the key was revoked."""
        if self._ring is None:
            return None if key_id else ANONYMOUS
        return self._ring.value.holder(key_id)

    def refresh(self, *, force: bool = False) -> None:
        """Reads the file if it has changed, or in any case."""
        if self._ring is not None:
            self._ring.refresh(force=force)


def _ring(path: Path) -> KeyRing:
    return KeyRing(read_keys(path))
