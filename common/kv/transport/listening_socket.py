"""UCX's listening TCP socket, as the kernel sees it: where it answers, and who is connected.

Theory of operation: UCXX binds its listener to every interface and offers no other way. The socket
is this process's own, so it is found by its port, and the kernel is told what UCX cannot be told:
a socket filter drops what is not addressed to the host of this worker before there is a connection,
so that the port looks closed elsewhere; and a connection reaches UCX only when it has sent
something. UCX keeps a connection that has begun a message for ever. Shutting it down from outside,
on a copy of its descriptor, makes UCX close it as if its peer had gone.

This is about TCP. RDMA connections are made past the kernel's sockets.

Sources: socket(7), SO_ATTACH_FILTER; tcp(7), TCP_DEFER_ACCEPT; the kernel's networking/filter.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")
SO_ATTACH_FILTER = 26
DEFER_ACCEPT_S = 5
_INSTRUCTION = struct.Struct("HBBI")
_FILTER = struct.Struct("HP")
_LOAD, _SKIP_UNLESS, _RETURN = 0x20, 0x15, 0x06
_DESTINATION = 0xFFF00000 + 16
"""The destination in the IPv4 header (SKF_NET_OFF and its offset there)."""
_ALL, _NOTHING = 0xFFFFFFFF, 0

Address = tuple[str, int]


def restrict(port: int, host: str) -> bool:
    """Has the process's listening sockets at this port answer only at `host`, an address or a name,
    and only to who says something. Returns whether it answers there only: not where `host` is
    `0.0.0.0` or no IPv4 address of this machine, as behind address translation, or where the kernel
    takes no filter."""
    addresses = _addresses(host)
    program = _program(addresses)
    found = False
    for own in _sockets(port):
        with own:
            if not _listens(own):
                continue
            try:
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER_ACCEPT_S)
                if addresses:
                    own.setsockopt(
                        socket.SOL_SOCKET,
                        SO_ATTACH_FILTER,
                        _FILTER.pack(len(program) // _INSTRUCTION.size, ctypes.addressof(program)),
                    )
            except OSError:
                return False
            found = bool(addresses)
    return found


def connected(port: int) -> set[Address]:
    """The other ends of the process's connections at this port."""
    peers: set[Address] = set()
    for own in _sockets(port):
        with own, contextlib.suppress(OSError):
            peers.add(own.getpeername()[:2])
    return peers


def shut_down(port: int, peers: set[Address]) -> None:
    """Ends the connections to these ends."""
    for own in _sockets(port):
        with own, contextlib.suppress(OSError):
            if own.getpeername()[:2] in peers:
                own.shutdown(socket.SHUT_RDWR)


def free_descriptors() -> int:
    """How many more files this process may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit - sum(1 for _ in DESCRIPTORS.iterdir())


def _sockets(port: int) -> Iterator[socket.socket]:
    """Copies of the process's IPv4 TCP sockets with this port of its own; the caller closes each.
    Descriptors may come and go meanwhile in other threads."""
    for entry in DESCRIPTORS.iterdir():
        with contextlib.suppress(OSError):
            number = int(entry.name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(number))
            tcp = copy.family == socket.AF_INET and copy.type == socket.SOCK_STREAM
            if tcp and copy.getsockname()[1] == port:
                yield copy
            else:
                copy.close()


def _listens(own: socket.socket) -> bool:
    return bool(own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _addresses(host: str) -> list[int]:
    """The IPv4 addresses of this name that this machine has; none for all of them."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    names = sorted({str(entry[4][0]) for entry in found})
    if "0.0.0.0" in names:
        return []
    return [int.from_bytes(socket.inet_aton(name), "big") for name in names if _is_own(name)]


def _is_own(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        try:
            tried.bind((address, 0))
        except OSError:
            return False
    return True


def _program(addresses: list[int]) -> ctypes.Array[ctypes.c_char]:
    """Loads the destination and returns at the first address that it equals."""
    code = [(_LOAD, 0, 0, _DESTINATION)]
    for address in addresses:
        code += [(_SKIP_UNLESS, 0, 1, address), (_RETURN, 0, 0, _ALL)]
    code.append((_RETURN, 0, 0, _NOTHING))
    return ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*line) for line in code))
