"""A file in use, read again when it changes.

A changed file that cannot be used is said once and changes nothing: a typing error must not lock
everybody out, nor let anybody in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from common.errors import ConfigError
from common.log import Logger

T = TypeVar("T")
Signature = tuple[int, int, int, int]


class WatchedFile(Generic[T]):
    """`value`: what `read` made of the file. `noun`: of its log events, `NOUN.reloaded` and
    `NOUN.rejected`. Raises ConfigError when the first reading fails."""

    def __init__(self, path: Path, read: Callable[[Path], T], noun: str, log: Logger) -> None:
        self._path = path
        self._read = read
        self._noun = noun
        self._log = log
        self._seen = _signature(path)
        self.value = read(path)

    def refresh(self, *, force: bool = False) -> bool:
        """Reads the file if it is not the one last seen, or in any case. True: `value` is new."""
        signature = _signature(self._path)
        if signature == self._seen and not force:
            return False
        self._seen = signature
        try:
            self.value = self._read(self._path)
        except ConfigError as error:
            sentence = f"{error.message}; what was read before stays valid"
            self._log.error(f"{self._noun}.rejected", sentence=sentence)
            return False
        self._log.info(f"{self._noun}.reloaded", file=str(self._path))
        return True


def _signature(path: Path) -> Signature | None:
    """None: not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size, stat.st_mode
