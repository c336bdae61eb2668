"""Which host speaks under which peer's name on a bound socket with keys. Pure.

Theory of operation: a ROUTER addresses a peer by the routing id that the peer chose, and gives the
id to the newest connection that asks for it. Every host of the allow-list may connect, so an id
that others know could be taken over together with all messages to it. A connecting socket therefore
adds a secret to its id (`with_secret`), which only the two ends know, and the bound socket gives
each name to the host whose key used it first. Frames that another host sends under it are dropped.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

PEERS_MAX = 8_192
SECRET_BYTES = 16
MARK = b"#"


class Route(NamedTuple):
    #: By which libzmq finds the peer's connection.
    routing_id: bytes
    #: The host whose key the connection has.
    host: str


def with_secret(identity: bytes) -> bytes:
    """The routing id of a new socket of this peer."""
    return identity + MARK + secrets.token_hex(SECRET_BYTES).encode()


class PeerRoutes:
    """The peers of one bound socket, by identity; at most `PEERS_MAX`."""

    def __init__(self) -> None:
        self._routes: dict[bytes, Route] = {}

    def accept(self, routing_id: bytes, host: str) -> bytes | None:
        """A frame came from this connection. Returns the peer's identity; None if the frame must be
        dropped, because the identity is another host's or there are too many peers."""
        identity = routing_id.partition(MARK)[0]
        route = self._routes.get(identity)
        if route is None or route.routing_id != routing_id:
            if route is not None and route.host != host:
                return None
            if route is None and not self._make_room(host):
                return None
            self._routes[identity] = Route(routing_id, host)
            return identity
        return identity if route.host == host else None

    def routing_id(self, identity: bytes) -> bytes:
        """By which libzmq finds this peer; the identity itself if no frame of it came yet."""
        route = self._routes.get(identity)
        return identity if route is None else route.routing_id

    def host_of(self, identity: bytes) -> str:
        """The host that speaks under this identity; empty for an unknown one."""
        route = self._routes.get(identity)
        return "" if route is None else route.host

    def _make_room(self, host: str) -> bool:
        """A full table forgets the oldest peer of the host that asks, never one of another."""
        if len(self._routes) < PEERS_MAX:
            return True
        own = next((peer for peer, route in self._routes.items() if route.host == host), None)
        if own is None:
            return False
        del self._routes[own]
        return True
