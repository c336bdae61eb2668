"""A worker's control connections: one to each router of the fleet, all with equal rights.

Reports go to every router, so that each knows the whole fleet. A link is open for reports once its
Hello was sent, and for Beats once the router answered. The worker reports what it holds on every
Welcome, so the router knows it before the first Beat makes the worker ready there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from common.messages import Beat, Message
from common.net.endpoints import CONTROL
from common.net.sockets import Curve, Sent, Socket
from common.net.wire import encode
from common.telemetry.log import Logger


class RouterLink:
    """The connection to one router. `on_frames` gets this link and the frames of one message."""

    def __init__(
        self,
        router: str,
        address: str,
        identity: bytes,
        *,
        hello: Callable[[], list[Message]],
        on_frames: Callable[[RouterLink, list[bytes]], None],
        log: Logger,
        curve: Curve | None = None,
    ) -> None:
        self.router = router
        self._hello = hello
        self._log = log
        self._hello_sent = False
        self._welcomed = False
        self._socket = Socket(
            CONTROL,
            connect=address,
            identity=identity,
            on_frames=lambda frames: on_frames(self, frames),
            on_connected=self._on_connected,
            on_disconnected=self._on_disconnected,
            curve=curve,
        )

    def start(self) -> None:
        self._socket.start()

    def close(self) -> None:
        self._socket.close()

    def welcomed(self) -> None:
        """The router answered the Hello."""
        self._welcomed = True

    def send(self, message: Message) -> None:
        """Sends a message. It is dropped before the Hello, after which everything is reported
        anew."""
        if not self._hello_sent or (isinstance(message, Beat) and not self._welcomed):
            return
        if self._socket.send([encode(message)]) is Sent.FULL:
            kind = type(message).__name__
            self._log.debug("message.dropped", router=self.router, lost=kind)

    def _on_connected(self) -> None:
        self._hello_sent = True
        for message in self._hello():
            self.send(message)

    def _on_disconnected(self) -> None:
        self._hello_sent = self._welcomed = False
        sentence = "streams go on; the worker connects again when the router is back"
        self._log.warning("router.lost", router=self.router, sentence=sentence)


class RouterLinks:
    """All control connections. `addresses` has the control endpoint of each router by name."""

    def __init__(
        self,
        addresses: Mapping[str, str],
        identity: bytes,
        *,
        hello: Callable[[], list[Message]],
        on_frames: Callable[[RouterLink, list[bytes]], None],
        log: Logger,
        curve: Curve | None = None,
    ) -> None:
        self._links = [
            RouterLink(
                name, address, identity, hello=hello, on_frames=on_frames, log=log, curve=curve
            )
            for name, address in addresses.items()
        ]

    def start(self) -> None:
        for link in self._links:
            link.start()

    def close(self) -> None:
        for link in self._links:
            link.close()

    def broadcast(self, message: Message, *, except_for: RouterLink | None = None) -> None:
        """Sends a message to every router, except for the one of that link."""
        for link in self._links:
            if link is not except_for:
                link.send(message)
