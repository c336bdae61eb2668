"""D's connections: one channel for each P address, opened on demand, cached, probed and closed.

Theory of operation: everything runs on the KV thread. A connection that does not open within
`CONNECT_S`, or the time that an answer may take if that is longer, is given up. While something is
awaited from an open one, its channel pings a silent peer (`keepalive.py`). A connection counts as
open when both sides have said hello and P's shared segment is mapped or cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from common.config.kv import KvPath
from common.identity import AttemptKey
from common.kv.layout import DeviceCopies
from common.kv.messages import KvMapped
from common.kv.peers.channel import (
    Channel,
    ChannelEvents,
    HandoffMessage,
    Secrets,
    WorkerIdentity,
)
from common.kv.peers.keepalive import Keepalive
from common.kv.staging.loans import LOAN_LANE
from common.kv.staging.shared_segment import Bytes, map_remote_segment
from common.kv.transport.chosen_transports import reaches_cards
from common.kv.transport.gpudirect import read_gpudirect
from common.kv.transport.ucx import UcxLink

CONNECT_S = 1.0
OpenLink = Callable[[str], UcxLink]


def _nothing_to_cancel() -> None:
    """No segment is being mapped."""


@dataclass(slots=True)
class _Connection:
    """The channel to one P address."""

    channel: Channel
    deadline: float
    """The instant at which a connection that is not open yet is given up."""
    waiting: list[AttemptKey] = field(default_factory=list)
    """The handoffs to notify when it opens or fails."""
    lanes: tuple[str, ...] = ()
    """What UCX chose for it, after `LOAN_LANE` if P's segment is mapped."""
    open: bool = False
    cancel_mapping: Callable[[], None] = _nothing_to_cancel


class Reach(NamedTuple):
    """How this D gets at P's memory."""

    maps_segments: bool
    """Maps P's shared segment where possible, so that P may loan messages instead of sending
    them."""
    device: DeviceCopies | None = None
    """What copies to this engine's blocks if they are on a card."""
    path: KvPath = "auto"
    """As in `KvConfig`."""


class ConnectionListener(Protocol):
    """The user of the connections."""

    def on_connected(self, key: AttemptKey, channel: Channel) -> None:
        """The connection that `connect_for` asked for is open."""

    def on_connect_failed(self, key: AttemptKey, why: str, final: bool) -> None:
        """The connection that `connect_for` asked for did not open. `final`: P refused this worker
        for good."""

    def on_message(self, channel: Channel, message: HandoffMessage) -> None: ...

    def on_disconnected(self, channel: Channel) -> None:
        """A channel has closed, also one that never opened."""


class Connections:
    """All channels of this D, by P's address."""

    def __init__(
        self,
        identity: WorkerIdentity,
        listener: ConnectionListener,
        *,
        open_link: OpenLink,
        clock: Callable[[], float],
        answer_seconds: float,
        reach: Reach,
        secrets: Secrets,
        on_refused: Callable[[str, str], None],
    ) -> None:
        """`answer_seconds`: how long a P may take to answer a ping. `secrets` and `on_refused` as
        in `Channel` and `ChannelEvents`."""
        self._identity = identity
        self._open_link = open_link
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._reach = reach
        self._secrets = secrets
        self._on_refused = on_refused
        self._listener = listener
        self._connections: dict[str, _Connection] = {}
        self._channels: dict[int, Channel] = {}
        self._next_peer = 1

    def lanes(self) -> dict[str, tuple[str, ...]]:
        """What each open connection uses, by the name of its P."""
        connections = [entry for entry in self._connections.values() if entry.open]
        peers = [(connection.channel.peer, connection.lanes) for connection in connections]
        return {peer.name: lanes for peer, lanes in peers if peer is not None}

    def open_addresses(self) -> tuple[str, ...]:
        return tuple(
            address for address, connection in self._connections.items() if connection.open
        )

    def channels(self) -> list[Channel]:
        return list(self._channels.values())

    def opening_count(self) -> int:
        """The number of connections that are not open yet."""
        return sum(1 for connection in self._connections.values() if not connection.open)

    def connect(self, address: str) -> None:
        """Begins to connect, unless there is a connection. Raises BatonError or ValueError."""
        self._connection(address)

    def open_channel(self, address: str) -> Channel | None:
        """Begins to connect, unless there is a connection; returns it once it is open. Raises
        BatonError or ValueError."""
        connection = self._connection(address)
        return connection.channel if connection.open else None

    def connect_for(self, key: AttemptKey, address: str) -> None:
        """Calls `on_connected` or `on_connect_failed` with this key, once: now, if a connection is
        open, or later. Raises BatonError or ValueError."""
        connection = self._connection(address)
        if connection.open:
            self._listener.on_connected(key, connection.channel)
        else:
            connection.waiting.append(key)

    def send(self, peer: int, message: msgspec.Struct) -> None:
        """Does nothing when that channel is closed."""
        channel = self._channels.get(peer)
        if channel is not None:
            channel.send(message)

    def tick(self, now: float, awaited: AbstractSet[int]) -> None:
        """Call several times a second. `awaited`: ids of the channels whose peer must answer."""
        for connection in list(self._connections.values()):
            channel = connection.channel
            if not connection.open:
                if connection.deadline <= now:
                    channel.close("no connection within the time limit")
            elif channel.id in awaited:
                channel.check_liveness(now)

    def close(self) -> None:
        for channel in self.channels():
            channel.close("the engine closes")

    def _connection(self, address: str) -> _Connection:
        connection = self._connections.get(address)
        if connection is None:
            link = self._open_link(address)
            peer_id, self._next_peer = self._next_peer, self._next_peer + 1
            now = self._clock()
            channel = Channel(
                peer_id,
                link,
                self._identity,
                Keepalive(now, self._answer_seconds),
                ChannelEvents(
                    on_open=lambda _: self._on_hello(address),
                    on_message=self._listener.on_message,
                    on_refused=lambda reason, why: self._on_refused(reason, f"{address}: {why}"),
                    on_closed=lambda closed, why, refused: self._on_closed(
                        address, closed, why, refused
                    ),
                ),
                secrets=self._secrets,
            )
            self._channels[peer_id] = channel
            connection = self._connections[address] = _Connection(
                channel, now + max(CONNECT_S, self._answer_seconds)
            )
        return connection

    def _on_hello(self, address: str) -> None:
        connection = self._connections[address]
        connection.lanes = connection.channel.link.lanes()
        name = connection.channel.remote_segment_name
        if name and self._reach.maps_segments:
            connection.cancel_mapping = map_remote_segment(
                name, lambda segment: self._finish_opening(connection, segment)
            )
        else:
            self._finish_opening(connection, None)

    def _finish_opening(self, connection: _Connection, segment: Bytes | None) -> None:
        """`segment`: P's, or None if every message will be sent."""
        channel, connection.open = connection.channel, True
        peer, device, path = channel.peer, self._reach.device, self._reach.path
        if self._identity.direct and peer is not None and peer.direct:
            reached = reaches_cards(connection.lanes, gpudirect=read_gpudirect().there)
            channel.direct = reached or path == "device"
        if segment is not None and device is not None:
            segment = segment if device.lock_pages(segment) else None
        if segment is not None:
            channel.remote_segment = segment
            connection.lanes = (LOAN_LANE, *connection.lanes)
            channel.send(KvMapped())
        waiting, connection.waiting = connection.waiting, []
        for key in waiting:
            self._listener.on_connected(key, channel)

    def _on_closed(self, address: str, channel: Channel, why: str, refused: bool) -> None:
        self._channels.pop(channel.id, None)
        connection = self._connections.get(address)
        if connection is not None and connection.channel is channel:
            connection.cancel_mapping()
            del self._connections[address]
            for key in connection.waiting:
                self._listener.on_connect_failed(key, why, refused)
        self._listener.on_disconnected(channel)
