"""Workers in network namespaces of their own, joined by a bridge that carries KV and nothing else.

Control stays on unix sockets, which pass between namespaces, so that the data plane can be cut by
itself. A cut takes the worker's cable out of the bridge: packets leave and never arrive, no
connection is closed. Needs root and `ip`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

CONNECT_SECONDS = 1.0
LISTEN_PORT = 7999


class NoNetworkError(Exception):
    """Why this host does not let us make namespaces."""


class Network:
    """`address` of each worker on the bridge."""

    def __init__(self, names: Sequence[str]) -> None:
        self._mark = f"{os.getpid() % 10_000}"
        self._bridge = f"bc{self._mark}"
        self._names = list(names)
        self._listeners: list[subprocess.Popen[bytes]] = []

    def address(self, name: str) -> str:
        return f"10.77.2.{10 + self._names.index(name)}"

    def prefix(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self._space(name)]

    def open(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        for name in self._names:
            space, near, far = self._space(name), self._cable(name), f"e{self._cable(name)}"
            _ip("netns", "add", space)
            _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", far)
            _ip("-n", space, "link", "set", far, "up")
            _ip("link", "set", near, "master", self._bridge, "up")
            self._listen(name)

    def close(self) -> None:
        for listener in self._listeners:
            listener.kill()
            listener.wait()
        for name in self._names:
            _try_ip("netns", "del", self._space(name))
        _try_ip("link", "del", self._bridge)

    def cut(self, name: str) -> None:
        _ip("link", "set", self._cable(name), "nomaster")

    def mend(self, name: str) -> None:
        _ip("link", "set", self._cable(name), "master", self._bridge)

    def reaches(self, name: str) -> bool:
        """Whether its KV plane is reached from another worker's."""
        other = next(peer for peer in self._names if peer != name)
        probe = (
            "import socket,sys; "
            "socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))"
        )
        command = [sys.executable, "-c", probe, self.address(name), str(LISTEN_PORT)]
        done = subprocess.run(
            [*self.prefix(other), *command, str(CONNECT_SECONDS)], capture_output=True, check=False
        )
        return done.returncode == 0

    def _listen(self, name: str) -> None:
        """Something that answers as long as packets arrive."""
        serve = (
            "import socket,sys; s=socket.create_server((sys.argv[1], int(sys.argv[2])))\n"
            "while True: s.accept()[0].close()"
        )
        command = [sys.executable, "-c", serve, self.address(name), str(LISTEN_PORT)]
        self._listeners.append(subprocess.Popen([*self.prefix(name), *command]))

    def _space(self, name: str) -> str:
        return f"bc{self._mark}{name}"

    def _cable(self, name: str) -> str:
        return f"bc{self._mark}{name}"


def _ip(*words: str) -> None:
    """Raises NoNetworkError."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoNetworkError(f"no `ip` here: {error.strerror}") from error
    if done.returncode:
        raise NoNetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _try_ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=False)


@contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    """Raises NoNetworkError where the host does not allow it; gone afterwards."""
    made = Network(names)
    try:
        made.open()
        yield made
    finally:
        made.close()
