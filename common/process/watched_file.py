"""A file in use that is read again when it changes.

A changed file that cannot be used is logged once and changes nothing: a typing error must neither
lock everybody out nor let anybody in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from common.errors import ConfigError
from common.telemetry.log import Logger

T = TypeVar("T")
Signature = tuple[int, int, int, int]


class WatchedFile(Generic[T]):
    """One file, and those of `also`, which `read` reads with it. `noun` begins its log events,
    `NOUN.reloaded` and `NOUN.rejected`. Raises ConfigError if the first reading fails."""

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], T],
        noun: str,
        log: Logger,
        *,
        also: Sequence[Path] = (),
    ) -> None:
        self._path = path
        self._paths = (path, *also)
        self._read = read
        self._noun = noun
        self._log = log
        self._signatures = self._current_signatures()
        #: What `read` returned for the file in force.
        self.value = read(path)

    def refresh(self, *, force: bool = False) -> bool:
        """Reads the file if it has changed, or in any case. Returns whether `value` is new."""
        signatures = self._current_signatures()
        if signatures == self._signatures and not force:
            return False
        self._signatures = signatures
        try:
            self.value = self._read(self._path)
        except ConfigError as error:
            sentence = f"{error.message}; what was read before stays valid"
            self._log.error(f"{self._noun}.rejected", sentence=sentence)
            return False
        self._log.info(f"{self._noun}.reloaded", file=str(self._path))
        return True

    def _current_signatures(self) -> list[Signature | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: Path) -> Signature | None:
    """None where there is no such file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size, stat.st_mode
