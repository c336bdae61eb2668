"""Staging memory that the other workers of this host read where it lies.

Theory of operation: P's staging buffers are one memory file without a name. Whoever connects to
P's abstract Unix socket as the same user is handed a descriptor of it, for reading only, and maps
it; a message then needs no transport, only word of where it is. The kernel ends all of it with the
processes: no file and no socket is left behind by a kill. Abstract names belong to a network
namespace, so a D elsewhere finds nobody there and gets its messages over UCX, as it does wherever
one of these calls fails. The file is sealed at its size: a mapped page can never be missing.
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
BORROW_S = 0.5
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_CREDENTIALS = struct.Struct("3i")
_HANDED = b"k"


def shares_memory(transports: str) -> bool:
    """Does this UCX_TLS list allow messages to stay in the host's memory?"""
    return bool(SHARED_MEMORY & {name.strip() for name in transports.split(",")})


class Arena:
    """`memory`: `size` bytes, made of zeros and of no pages yet. `name`: what `borrow` wants, empty
    until `open`. Raises OSError where the kernel has no such files."""

    def __init__(self, size: int) -> None:
        self.name = ""
        self._socket: socket.socket | None = None
        file = os.memfd_create("baton-kv-staging", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, size)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            self.memory: Bytes = np.frombuffer(mmap.mmap(file, size), np.uint8)
            self._readable = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(file)

    def open(self) -> None:
        """Hands the memory out from now on, on the running loop. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        name = f"baton-kv-{os.urandom(8).hex()}"
        self._socket.bind("\0" + name)
        self._socket.listen(BACKLOG)
        self._loop.add_reader(self._socket, self._asked)
        self.name = name

    def close(self) -> None:
        """Hands out no more; who has it keeps it. Idempotent."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._readable >= 0:
            os.close(self._readable)
            self._readable = -1

    def _asked(self) -> None:
        with contextlib.suppress(OSError):
            caller, _ = self._socket.accept() if self._socket is not None else (None, "")
            if caller is not None:
                with caller:
                    if _same_user(caller):
                        socket.send_fds(caller, [_HANDED], [self._readable])


def borrow(name: str, done: Callable[[Bytes | None], None]) -> Callable[[], None]:
    """Calls `done`, once, from the running loop, with the memory of the arena with this name,
    read-only, for as long as the array lives; with None where it cannot be had: another host,
    namespace or user, or nobody answers within `BORROW_S`. Returns how to give up."""
    loop = asyncio.get_running_loop()
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.setblocking(False)

    def give_up() -> None:
        limit.cancel()
        if line.fileno() >= 0:
            loop.remove_reader(line)
            line.close()

    def answered() -> None:
        try:
            memory = _received(line)
        except (OSError, ValueError):
            memory = None
        give_up()
        done(memory)

    def unanswered() -> None:
        give_up()
        done(None)

    limit: asyncio.Handle = loop.call_later(BORROW_S, unanswered)
    try:
        line.connect("\0" + name)
        loop.add_reader(line, answered)
    except (OSError, ValueError):
        limit.cancel()
        limit = loop.call_soon(unanswered)
    return give_up


def _received(line: socket.socket) -> Bytes | None:
    _, files, _, _ = socket.recv_fds(line, len(_HANDED), 1)
    if len(files) != 1:
        return None
    try:
        sealed = fcntl.fcntl(files[0], fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if not (sealed and _same_user(line)):
            return None
        return np.frombuffer(mmap.mmap(files[0], 0, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(files[0])


def _same_user(line: socket.socket) -> bool:
    raw = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())
