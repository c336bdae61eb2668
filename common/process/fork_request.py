"""What `baton up` and the process that workers are forked off say to each other.

Over a socket of packets. First comes `GREETING`. Each request is `REQUEST` with three descriptors:
a file with a `Start`, the worker's log, and the reading end of a pipe. The answer is the worker's
process id as `PID`. The worker begins when `GO` comes through the pipe, and ends if that is closed.
"""

from __future__ import annotations

import struct

import msgspec

GREETING = b"imported"
REQUEST = b"f"
PID = struct.Struct("!i")
"""0: it could not be forked."""
GO = b"g"
UNFIT = 3
"""Exit status where workers must not be forked: this vLLM does not compute on the CPU."""


class Start(msgspec.Struct, frozen=True):
    """What a worker is told."""

    #: The words after `baton`.
    arguments: list[bytes]
    #: All of it.
    environment: dict[bytes, bytes]
