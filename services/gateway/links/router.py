"""The gateway's connection to its router: Hello on every connect, then Beats.

The link is up from the router's Welcome until the transport closes or takes no more messages. A
beat while it is connected but not up sends Hello again, so that a full queue heals without a
reconnect.
"""

from __future__ import annotations

from collections.abc import Callable

from common.clock import Clock
from common.errors import WireError
from common.identity import identity_of
from common.messages import (
    Beat,
    Hello,
    Leaving,
    Live,
    Message,
    Refused,
    RouterToGateway,
    Welcome,
)
from common.net.endpoints import CONTROL
from common.net.sockets import Dial, Socket
from common.net.wire import Decoder, encode
from common.telemetry.log import Logger
from services.gateway.requests.events import Event, FromRouter, RouterDown, RouterUp


class RouterLink:
    """`handle` takes this router's messages and whether the link is up. `live` returns the attempts
    that the core still wants. `on_refused` is called when the router does not accept the Hello."""

    def __init__(
        self,
        hello: Hello,
        *,
        router: str,
        dial: Dial,
        clock: Clock,
        handle: Callable[[RouterLink, Event], None],
        live: Callable[[], Live],
        on_refused: Callable[[str], None],
        log: Logger,
    ) -> None:
        self._hello = hello
        #: The router's name.
        self.router = router
        #: When a message last came: seconds, monotonic.
        self.last_message_at = clock.monotonic()
        self._clock = clock
        self._handle = handle
        self._live = live
        self._on_refused = on_refused
        self._log = log
        self._decoder: Decoder[RouterToGateway] = Decoder(RouterToGateway)
        self._connected = False
        self._up = False
        self._leaving = False
        #: Frames that were no message of the wire.
        self.dropped = 0
        self._socket = Socket(
            CONTROL,
            connect=dial.address,
            identity=identity_of(hello.name, hello.incarnation).encode(),
            on_frames=self._on_frames,
            on_connected=self._on_connected,
            on_disconnected=self._on_disconnected,
            curve=dial.curve,
        )

    @property
    def up(self) -> bool:
        return self._up

    def start(self) -> None:
        self._socket.start()

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Message, body: bytes | None = None) -> None:
        """A message that cannot be sent takes the link down; the core then holds its work."""
        frame = encode(message)
        if not self._socket.send([frame] if body is None else [frame, body]):
            self._lost("it takes no more messages")

    def beat(self) -> None:
        if self._up:
            self.send(Beat())
        elif self._connected:
            self._send_hello()

    def leave(self) -> None:
        self._leaving = True
        if self._up:
            self.send(Leaving(reason="stopping"))

    def _on_connected(self) -> None:
        self._connected = True
        self._send_hello()

    def _send_hello(self) -> None:
        self._socket.send([encode(self._hello)])

    def _on_disconnected(self) -> None:
        self._connected = False
        self._lost("its connection closed")

    def _lost(self, reason: str) -> None:
        if not self._up:
            return
        self._up = False
        sentence = f"{reason}; streams go on, new work waits for a router"
        self._log.warning("router.lost", router=self.router, sentence=sentence)
        self._handle(self, RouterDown())

    def _on_frames(self, frames: list[bytes]) -> None:
        self.last_message_at = self._clock.monotonic()
        try:
            message = self._decoder.decode(frames[0])
        except WireError as error:
            self.dropped += 1
            self._log.warning("frame.dropped", peer="router", sentence=error.message)
            return
        match message:
            case Welcome():
                self._welcomed(message)
            case Refused(request_id=""):
                self._on_refused(message.message)
            case _:
                self._handle(self, FromRouter(message))

    def _welcomed(self, welcome: Welcome) -> None:
        self._socket.send([encode(self._live())])
        if not self._up:
            self._up = True
            self._log.info("router.welcomed", router=welcome.name)
            self._handle(self, RouterUp())
        if self._leaving:
            self.send(Leaving(reason="stopping"))
