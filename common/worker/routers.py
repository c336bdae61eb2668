"""A worker's control connections: one to each router of the fleet, all of equal right.

Reports go to every router, so that each knows the whole fleet. A link is greeted from its Hello on,
welcomed from the router's answer on; only then it gets beats, so that what the worker holds, which
it says on every Welcome, is known before its first Beat makes it ready there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from common.endpoints import CONTROL
from common.log import Logger
from common.messages import Beat, Message
from common.sockets import Curve, Sent, Socket
from common.wire import encode


class RouterLink:
    """The connection to one router; `on_frames` gets this link and the frames."""

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
        self._greeted = False
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
        self._welcomed = True

    def say(self, message: Message) -> None:
        """Lost while this router is not greeted: it is told anew when it is."""
        if not self._greeted or (isinstance(message, Beat) and not self._welcomed):
            return
        if self._socket.send([encode(message)]) is Sent.FULL:
            kind = type(message).__name__
            self._log.debug("router.unreachable", router=self.router, lost=kind)

    def _on_connected(self) -> None:
        self._greeted = True
        for message in self._hello():
            self.say(message)

    def _on_disconnected(self) -> None:
        self._greeted = self._welcomed = False
        sentence = "streams go on; the router is greeted again when it is back"
        self._log.warning("router.lost", router=self.router, sentence=sentence)


class RouterLinks:
    """`addresses`: control endpoint by router name."""

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

    def say(self, message: Message, *, but: RouterLink | None = None) -> None:
        """To every router (but this one)."""
        for link in self._links:
            if link is not but:
                link.say(message)
