"""The key file in use, read again when it changes.

A changed file that cannot be used is said once and changes nothing: a typing error must not lock
everybody out, nor let anybody in. Streams that run keep running when their key is revoked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.errors import ConfigError
from common.keys import read_keys
from common.log import Logger
from services.gateway.auth.caller import ANONYMOUS, Caller
from services.gateway.auth.ring import KeyRing

Signature = tuple[int, int, int, int]


class Authenticator:
    """`path` empty: every caller is anonymous (the configuration has checked that this is wanted).
    Raises ConfigError when the first reading fails."""

    def __init__(self, path: str, log: Logger) -> None:
        self._path = Path(path) if path else None
        self._log = log
        self._seen: Signature | None = None
        self._ring: KeyRing | None = None
        self.refused = 0
        if self._path is not None:
            self._seen = _signature(self._path)
            self._ring = KeyRing(read_keys(self._path))

    def caller(self, authorization: Sequence[str], api_key: Sequence[str]) -> Caller:
        """Raises BatonError(INVALID_API_KEY)."""
        return ANONYMOUS if self._ring is None else self._ring.caller(authorization, api_key)

    def refresh(self, *, force: bool = False) -> None:
        """Reads the file if it is not the one last seen, or in any case."""
        if self._path is None:
            return
        signature = _signature(self._path)
        if signature == self._seen and not force:
            return
        self._seen = signature
        try:
            self._ring = ring = KeyRing(read_keys(self._path))
        except ConfigError as error:
            sentence = f"{error.message}; the keys read before stay valid"
            self._log.error("keys.rejected", sentence=sentence)
            return
        self._log.info("keys.reloaded", keys=len(ring))


def _signature(path: Path) -> Signature | None:
    """None: not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size, stat.st_mode
