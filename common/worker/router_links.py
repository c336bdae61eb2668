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
        self._connected = False
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

    def greet(self) -> None:
        """Says Hello, again if need be: what the router was told before does not hold any more. One
        that is not connected hears it when it is."""
        if self._connected:
            self._hello_sent = self._welcomed = False
            self._say_hello()

    def send(self, message: Message) -> None:
        """Sends a message. It is dropped before the Hello, after which everything is reported anew.
        A Hello that found no room is said first."""
        if self._connected and not self._hello_sent:
            self._say_hello()
        if not self._hello_sent or (isinstance(message, Beat) and not self._welcomed):
            return
        self._send(message)

    def _send(self, message: Message) -> bool:
        sent = self._socket.send([encode(message)])
        if sent is Sent.FULL:
            kind = type(message).__name__
            self._log.debug("message.dropped", router=self.router, lost=kind)
        return sent is not Sent.FULL

    def _say_hello(self) -> None:
        hello, *more = self._hello()
        self._hello_sent = self._send(hello)
        for message in more:
            self.send(message)

    def _on_connected(self) -> None:
        self._connected = True
        self._say_hello()

    def _on_disconnected(self) -> None:
        self._connected = self._hello_sent = self._welcomed = False
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

    def greet(self) -> None:
        """Says Hello to every router, because the worker is not what it was."""
        for link in self._links:
            link.greet()

    def broadcast(self, message: Message, *, except_for: RouterLink | None = None) -> None:
        """Sends a message to every router, except for the one of that link."""
        for link in self._links:
            if link is not except_for:
                link.send(message)
