"""The fields of one request that change nothing here: named in its answer's header, and counted.

A client learns from the header `x-ignored-fields` what was passed over, and an operator from the
metric. `[gateway] unknown_fields = "refuse"` refuses the unknown ones instead. Names come from the
client, so they are cut, and only harmless characters of them are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from common.errors import BatonError, Code

IGNORED_HEADER = "x-ignored-fields"
NAME_CHARS_MAX = 64
#: Of one request, in the header.
NAMES_MAX = 16
UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]")


class IgnoredFields:
    """Of one request. `count` is called once for each name."""

    __slots__ = ("_count", "_names", "_refuses")

    def __init__(self, count: Callable[[str], None] | None = None, *, refuses: bool = False):
        self._count = count
        self._refuses = refuses
        self._names: set[str] = set()

    def add_unknown(self, param: str) -> None:
        """Raises BatonError(UNSUPPORTED_PARAMETER) where unknown fields are refused."""
        if self._refuses:
            name = shortened(param)
            sentence = f'unknown parameter {name!r} (gateway.unknown_fields = "refuse")'
            raise BatonError(Code.UNSUPPORTED_PARAMETER, sentence, param=name)
        self.add(param)

    def add(self, param: str) -> None:
        """A field that is known to change nothing here."""
        name = UNSAFE.sub("?", shortened(param))
        if name in self._names or len(self._names) >= NAMES_MAX:
            return
        self._names.add(name)
        if self._count is not None:
            self._count(name)

    @property
    def header(self) -> str:
        """The names, of which at most `NAMES_MAX` are kept; empty: nothing was ignored."""
        return ", ".join(sorted(self._names))


def shortened(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else f"{name[:NAME_CHARS_MAX]}..."
