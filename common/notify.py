"""Tells the supervisor how this daemon fares: the sd_notify datagram protocol.

systemd and `baton up` both listen on the unix socket named by NOTIFY_SOCKET, so a daemon is
supervised the same way by either. Source: sd_notify(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends states; silently does nothing where nobody listens, as sd_notify does."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            try:
                channel.sendto(state.encode(), address)
            except OSError:
                self._address = ""
