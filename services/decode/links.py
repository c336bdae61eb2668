"""One stream socket per gateway, opened at its first request and kept.

A gateway that closes its side, or whose queue is full, counts as lost: its streams here are dropped
at once and its link is closed. If the gateway is still running, its own Ping fails and it
resubmits. Frames made before the connection is established are held, bounded in number and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.errors import WireError
from common.identity import identity_of
from common.messages import (
    WIRE_VERSION,
    Abort,
    GatewayToDecode,
    Hello,
    Ping,
    Refused,
    Role,
    Tokens,
    Welcome,
)
from common.net.endpoints import STREAM
from common.net.sockets import Curve, Socket
from common.net.wire import Decoder, encode
from common.telemetry.log import Logger
from common.worker.actions import Event, GatewayGone, ToGateway

HELD_FRAMES_MAX = 4096
CONNECT_SECONDS = 3.0
LINKS_MAX = 256


class GatewayLink:
    """The stream connection to one incarnation of one gateway."""

    def __init__(self, owner: GatewayLinks, gateway: str, incarnation: str, endpoint: str) -> None:
        self._owner = owner
        self.gateway = gateway
        self.incarnation = incarnation
        self._connected = False
        self._held: list[bytes] = []
        self._decoder: Decoder[GatewayToDecode] = Decoder(GatewayToDecode)
        self._socket = Socket(
            STREAM,
            connect=endpoint,
            identity=owner.identity,
            on_frames=self._on_frames,
            on_connected=self._on_connected,
            on_disconnected=lambda: self._lose("its stream socket closed"),
            curve=owner.curve,
        )
        self._socket.start()
        self._timeout = asyncio.get_running_loop().call_later(
            CONNECT_SECONDS, self._lose, f"no connection within {CONNECT_SECONDS:.0f} s"
        )

    def send(self, frame: bytes) -> bool:
        """False if the frame was not taken."""
        if self._connected:
            return bool(self._socket.send([frame]))
        if len(self._held) >= HELD_FRAMES_MAX:
            return False
        self._held.append(frame)
        return True

    def close(self) -> None:
        self._timeout.cancel()
        self._socket.close()

    def _on_connected(self) -> None:
        self._timeout.cancel()
        self._connected = True
        held, self._held = self._held, []
        for frame in (self._owner.hello(), *held):
            if not self._socket.send([frame]):
                self._lose("its stream socket takes no more")
                return

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            message = self._decoder.decode(frames[0])
        except WireError as error:
            self._owner.log.warning("frame.dropped", gateway=self.gateway, sentence=error.message)
            return
        match message:
            case Abort():
                self._owner.handle(message)
            case Refused():
                self._lose(f"it refused the stream: {message.message}")
            case Welcome() | Ping():
                pass

    def _lose(self, reason: str) -> None:
        self._owner.lose(self, reason)


class GatewayLinks:
    """All links of one decode worker. `handle` passes an event to the worker's core."""

    def __init__(
        self,
        name: str,
        incarnation: str,
        handle: Callable[[Event], None],
        log: Logger,
        curve: Curve | None = None,
    ) -> None:
        self._name = name
        self._incarnation = incarnation
        self._links: dict[tuple[str, str], GatewayLink] = {}
        self.handle = handle
        self.log = log
        self.curve = curve

    @property
    def identity(self) -> bytes:
        return identity_of(self._name, self._incarnation).encode()

    def hello(self) -> bytes:
        return encode(
            Hello(
                wire_version=WIRE_VERSION,
                role=Role.DECODE,
                name=self._name,
                incarnation=self._incarnation,
            )
        )

    def send(self, action: ToGateway) -> bool:
        """False if the link took nothing; the caller then counts the gateway as lost."""
        key = (action.gateway, action.incarnation)
        link = self._links.get(key)
        if link is None:
            if len(self._links) >= LINKS_MAX:
                self.lose(next(iter(self._links.values())), f"over {LINKS_MAX} gateways")
            link = self._links[key] = GatewayLink(self, *key, action.endpoint)
        if link.send(encode(Tokens(deltas=action.deltas))):
            return True
        self.lose(link, "its stream socket takes no more")
        return False

    def lose(self, link: GatewayLink, reason: str) -> None:
        """Closes the link and reports its gateway as lost, once."""
        if self._links.pop((link.gateway, link.incarnation), None) is None:
            return
        link.close()
        self.log.warning(
            "gateway.lost", gateway=link.gateway, sentence=f"streams dropped: {reason}"
        )
        self.handle(GatewayGone(link.gateway, link.incarnation, reason))

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
