"""The order that a running stream leaves its decode worker and goes on at another."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class MoveReason(enum.StrEnum):
    #: An operator drains its worker.
    DRAIN = "drain"
    #: Its worker takes another role.
    ROLE = "role"
    #: Its worker stops.
    STOP = "stop"
    #: An operator evicts all that its worker holds.
    EVICT = "evict"
    #: An operator moves this stream.
    OPERATOR = "operator"
    #: A request of a higher class, or one that a client waits for, needs its place.
    ROOM = "room"
    #: It has as much KV as it is promised, and another worker has more room.
    BUDGET = "budget"
    #: The queue and the other streams gain more than it loses.
    REBALANCE = "rebalance"
    #: Its worker gave it up at the end of a drain, or another router ordered it.
    UNORDERED = "unordered"


class MoveOutcome(enum.StrEnum):
    #: It goes on from its KV.
    MOVED = "moved"
    #: It goes on, and its KV was computed again: it did not come.
    RECOMPUTED = "recomputed"
    #: It was over before it left.
    ENDED = "ended"
    #: It left, and was over before it had a token elsewhere.
    LOST = "lost"
    #: No worker had room: it was ended, and goes on once there is room.
    PARKED = "parked"


@dataclass(slots=True)
class MoveOrder:
    """Of one attempt. The next attempt of the request is placed by it."""

    reason: MoveReason
    #: The reason for an operator.
    sentence: str
    #: Identity of the decode worker on which it is to go on; empty = any that has room.
    target: str = ""
    #: When its worker is told. The workers that may take it connect before.
    due: float = 0.0
    #: When its worker was told; None = not yet.
    told: float | None = None
    #: Identity of the decode worker whose store gets its full blocks before it leaves; empty = its
    #: KV travels when it has left.
    copy_to: str = ""
    #: When it leaves though they are not all there; None = they are not asked for yet.
    copy_until: float | None = None
    #: How many blocks were there when it left; None = that is not known.
    copied_blocks: int | None = None
    #: Whether no worker had room, so that it waits in the queue.
    parks: bool = False
