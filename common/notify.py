"""Tells the supervisor how this daemon fares: the sd_notify datagram protocol.

systemd and `baton up` both listen on the unix socket named by NOTIFY_SOCKET, so a daemon is
supervised the same way by either. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends states; silently does nothing where nobody listens, as sd_notify does.

    `watchdog_seconds`: the supervisor kills us when it hears no beat for so long; 0 = it does not.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog_seconds = _watchdog_seconds(environ) if self._address else 0.0

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def beat(self) -> None:
        self._send("WATCHDOG=1")

    def reloading(self, monotonic_ns: int) -> None:
        """`ready` says when it is over. Units of Type=notify-reload need the clock's reading, from
        CLOCK_MONOTONIC."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            with contextlib.suppress(OSError):
                channel.sendto(state.encode(), address)


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """A child that inherited these variables is not the one that is watched."""
    watched = environ.get("WATCHDOG_PID", "")
    if watched and watched != str(os.getpid()):
        return 0.0
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() else 0.0
