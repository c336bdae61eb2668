"""D's connections: one channel to each P address, opened at need, kept, felt for and mourned.

Theory of operation: all on the KV thread. A connection that does not come about in `CONNECT_S` is
given up; one that is silent while something is awaited from it is asked whether it is there
(`pulse.py`). It is open when both said hello and P's arena is mapped, or cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from common.kv.arena import Bytes, borrow
from common.kv.control import Channel, Heard, Identity
from common.kv.handoff.desk import Key
from common.kv.lent import LANE
from common.kv.messages import KvMapped
from common.kv.pulse import Pulse
from common.kv.ucx import Link

CONNECT_S = 1.0
Open = Callable[[str], Link]


def _nothing() -> None:
    """Nobody is asked."""


@dataclass(slots=True)
class _Way:
    """The channel to one P address; `waiting` for it to open until `deadline`. `lanes`: what UCX
    chose for it, after the arena if that is mapped; `give_up` ends the asking for it."""

    channel: Channel
    deadline: float
    waiting: list[Key] = field(default_factory=list)
    lanes: tuple[str, ...] = ()
    open: bool = False
    give_up: Callable[[], None] = _nothing


class Traveller(Protocol):
    """Who wants to go somewhere. Of `reached` and `unreachable` one is called, once, for each key
    that `reach` was called with. `final`: P refused us for good. `gone`: a channel is no more."""

    def reached(self, key: Key, channel: Channel) -> None: ...

    def unreachable(self, key: Key, why: str, final: bool) -> None: ...

    def heard(self, channel: Channel, message: Heard) -> None: ...

    def gone(self, channel: Channel) -> None: ...


class Ways:
    """`borrows`: lent messages are welcome."""

    def __init__(
        self,
        identity: Identity,
        traveller: Traveller,
        *,
        open_link: Open,
        clock: Callable[[], float],
        answer_seconds: float,
        borrows: bool,
    ) -> None:
        self._identity = identity
        self._open_link = open_link
        self._clock = clock
        self._answer_seconds = answer_seconds
        self._borrows = borrows
        self._traveller = traveller
        self._ways: dict[str, _Way] = {}
        self._channels: dict[int, Channel] = {}
        self._next_peer = 1

    def lanes(self) -> dict[str, tuple[str, ...]]:
        """By the name of each P that a connection is open to."""
        peers = [(way.channel.peer, way.lanes) for way in self._ways.values() if way.open]
        return {peer.name: lanes for peer, lanes in peers if peer is not None}

    def linked(self) -> tuple[str, ...]:
        """Addresses that a connection is open to."""
        return tuple(at for at, way in self._ways.items() if way.open)

    def opening(self) -> int:
        """How many are not open yet."""
        return sum(1 for way in self._ways.values() if not way.open)

    def connect(self, address: str) -> None:
        """Begins to, unless it is done. Raises BatonError or ValueError."""
        self._way(address)

    def reach(self, key: Key, address: str) -> None:
        """Raises BatonError or ValueError."""
        way = self._way(address)
        if way.open:
            self._traveller.reached(key, way.channel)
        else:
            way.waiting.append(key)

    def tell(self, peer: int, message: msgspec.Struct) -> None:
        channel = self._channels.get(peer)
        if channel is not None:
            channel.tell(message)

    def tick(self, now: float, awaited: AbstractSet[int]) -> None:
        """`awaited`: ids of the channels that something is awaited from."""
        for way in list(self._ways.values()):
            channel = way.channel
            if not way.open:
                if way.deadline <= now:
                    channel.close("no connection within the time limit")
            elif channel.id in awaited:
                channel.feel_pulse(now)

    def close(self) -> None:
        for channel in list(self._channels.values()):
            channel.close("the engine closes")

    def _way(self, address: str) -> _Way:
        way = self._ways.get(address)
        if way is None:
            link = self._open_link(address)
            peer_id, self._next_peer = self._next_peer, self._next_peer + 1
            now = self._clock()
            channel = Channel(
                peer_id,
                link,
                self._identity,
                Pulse(now, self._answer_seconds),
                on_open=lambda _: self._opened(address),
                on_message=self._traveller.heard,
                on_closed=lambda gone, why, refused: self._gone(address, gone, why, refused),
            )
            self._channels[peer_id] = channel
            way = self._ways[address] = _Way(channel, now + CONNECT_S)
        return way

    def _opened(self, address: str) -> None:
        way = self._ways[address]
        way.lanes = way.channel.link.lanes()
        name = way.channel.their_staging
        if name and self._borrows:
            way.give_up = borrow(name, lambda arena: self._decided(way, arena))
        else:
            self._decided(way, None)

    def _decided(self, way: _Way, arena: Bytes | None) -> None:
        """Its messages are lent, or they are not."""
        channel, way.open = way.channel, True
        if arena is not None:
            channel.borrowed = arena
            way.lanes = (LANE, *way.lanes)
            channel.tell(KvMapped())
        waiting, way.waiting = way.waiting, []
        for key in waiting:
            self._traveller.reached(key, channel)

    def _gone(self, address: str, channel: Channel, why: str, refused: bool) -> None:
        self._channels.pop(channel.id, None)
        way = self._ways.get(address)
        if way is not None and way.channel is channel:
            way.give_up()
            del self._ways[address]
            for key in way.waiting:
                self._traveller.unreachable(key, why, refused)
        self._traveller.gone(channel)
