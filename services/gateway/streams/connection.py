"""The port to a client's connection, as a streamed answer uses it."""

from __future__ import annotations

from typing import Protocol

from common.errors import BatonError

#: The end of one server-sent event.
END = b"\n\n"


class Connection(Protocol):
    """Nothing more is written after `refuse` or `end`."""

    def write(self, payload: bytes) -> None:
        """Takes the bytes at once and never waits; the connection bounds what a slow client does
        not take."""
        ...

    def refuse(self, error: BatonError) -> None:
        """Answers with an ordinary HTTP error; nothing was written yet."""
        ...

    def end(self) -> None: ...
