"""TCP ports for daemons that are told where to listen."""

import itertools
import os
import socket

FIRST, LAST = 20_000, 30_000
"""Below what Linux gives to outgoing connections (32768 to 60999), which could take a port between
the moment when it is found free and the moment when its daemon listens."""

_numbers = itertools.cycle(range(FIRST, LAST))
_reserved: list[socket.socket] = []
for _ in range(os.getpid() % (LAST - FIRST)):
    next(_numbers)


def free_port() -> int:
    """A TCP port that nobody listens at and that no other process of this host is given by this
    function as long as this one lives. Raises OSError when none is left."""
    for port in itertools.islice(_numbers, LAST - FIRST):
        reserved = socket.socket(socket.AF_UNIX)
        try:
            reserved.bind(f"\0baton-port-{port}")  # ends with this process
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as daemons do
                probe.bind(("0.0.0.0", port))
        except OSError:
            reserved.close()
            continue
        _reserved.append(reserved)
        return port
    raise OSError(f"no port from {FIRST} to {LAST} is free")
