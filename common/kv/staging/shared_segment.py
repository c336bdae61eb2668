"""A shared segment: staging memory that the other workers of this host read where it lies.

Theory of operation: P's staging buffers lie in one memory file without a name. A process of the
same user that connects to P's abstract Unix socket is handed a read-only descriptor of the file and
maps it; of each message only its offset is then sent. The kernel frees everything with the
processes, so a kill leaves no file and no socket behind. Abstract names belong to a network
namespace: a D elsewhere finds no socket and gets its messages over UCX, as it does wherever one of
these calls fails. The file is sealed at its size, so a mapped page can never be missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

SHARED_MEMORY = frozenset({"sm", "shm", "sysv", "posix", "all"})
BACKLOG = 128
MAP_SEGMENT_S = 0.5
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_CREDENTIALS = struct.Struct("3i")
_GREETING = b"k"


def shares_memory(transports: str) -> bool:
    """Whether this UCX_TLS list allows messages to stay in the host's memory."""
    return bool(SHARED_MEMORY & {name.strip() for name in transports.split(",")})


class SharedSegment:
    """Memory of this process that others may map for reading."""

    def __init__(self, size: int) -> None:
        """Raises OSError where the kernel has no such files."""
        #: What `map_remote_segment` takes; empty until `open`.
        self.name = ""
        self._socket: socket.socket | None = None
        file = os.memfd_create("baton-kv-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, size)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            #: `size` zeros; the kernel allocates a page when it is first written.
            self.memory: Bytes = np.frombuffer(mmap.mmap(file, size), np.uint8)
            self._readable = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(file)

    def open(self) -> None:
        """Serves descriptors from now on, on the running loop. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        name = f"baton-kv-{os.urandom(8).hex()}"
        self._socket.bind("\0" + name)
        self._socket.listen(BACKLOG)
        self._loop.add_reader(self._socket, self._serve_descriptor)
        self.name = name

    def close(self) -> None:
        """Serves no more descriptors; a process that has mapped the memory keeps it. Idempotent."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._readable >= 0:
            os.close(self._readable)
            self._readable = -1

    def _serve_descriptor(self) -> None:
        with contextlib.suppress(OSError):
            caller, _ = self._socket.accept() if self._socket is not None else (None, "")
            if caller is not None:
                with caller:
                    if _same_user(caller):
                        socket.send_fds(caller, [_GREETING], [self._readable])


def map_remote_segment(name: str, done: Callable[[Bytes | None], None]) -> Callable[[], None]:
    """Maps the segment of another process by its name, read-only, for as long as the array lives.

    Calls `done` once, from the running loop, with the memory, or with None where it cannot be
    mapped: on another host, in another namespace, of another user, or when nothing answers within
    `MAP_SEGMENT_S`. Returns a function that cancels."""
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)

    def cancel() -> None:
        limit.cancel()
        if connection.fileno() >= 0:
            loop.remove_reader(connection)
            connection.close()

    def on_answer() -> None:
        try:
            memory = _map_received(connection)
        except (OSError, ValueError):
            memory = None
        cancel()
        done(memory)

    def on_timeout() -> None:
        cancel()
        done(None)

    limit: asyncio.Handle = loop.call_later(MAP_SEGMENT_S, on_timeout)
    try:
        connection.connect("\0" + name)
        loop.add_reader(connection, on_answer)
    except (OSError, ValueError):
        limit.cancel()
        limit = loop.call_soon(on_timeout)
    return cancel


def _map_received(connection: socket.socket) -> Bytes | None:
    _, files, _, _ = socket.recv_fds(connection, len(_GREETING), 1)
    if len(files) != 1:
        return None
    try:
        sealed = fcntl.fcntl(files[0], fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if not (sealed and _same_user(connection)):
            return None
        return np.frombuffer(mmap.mmap(files[0], 0, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(files[0])


def _same_user(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())
