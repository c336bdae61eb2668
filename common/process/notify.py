"""Reports this daemon's state to its supervisor: the sd_notify datagram protocol.

systemd and `baton up` both listen on the unix socket named by NOTIFY_SOCKET, so a daemon is
supervised the same way by either. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends states. It silently does nothing where nobody listens, as sd_notify does."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        #: Seconds without a beat after which the supervisor kills this process; 0 if it does not.
        self.watchdog_seconds = _watchdog_seconds(environ) if self._address else 0.0

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def beat(self) -> None:
        self._send("WATCHDOG=1")

    def reloading(self, monotonic_ns: int) -> None:
        """Reports that a reload began; `ready` reports its end. Units of Type=notify-reload need
        the reading of CLOCK_MONOTONIC."""
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
    """The watchdog time in seconds; 0 in a child that inherited these variables from the watched
    process."""
    watched = environ.get("WATCHDOG_PID", "")
    if watched and watched != str(os.getpid()):
        return 0.0
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() else 0.0
