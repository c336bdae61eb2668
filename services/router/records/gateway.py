"""The row of a gateway."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from common.identity import AttemptKey

LOST_MAX = 1_024


@dataclass(slots=True)
class Gateway:
    """One incarnation of a gateway. Instants are seconds on the core's clock."""

    #: `name|incarnation`, its ZeroMQ identity.
    identity: str
    name: str
    incarnation: str
    #: Where decode workers send the tokens of its requests.
    stream_endpoint: str
    pid: int
    #: When its last message arrived.
    last_seen: float
    #: When it joined, went out of reach, or returned, whichever was last.
    since: float
    #: The host whose key it has; empty where no keys are asked for.
    host: str = ""
    #: Whether it is out of reach.
    gone: bool = False
    #: Whether it said Leaving.
    leaving: bool = False
    #: Why it is out of reach or leaving, for an operator.
    reason: str = ""
    #: Its live attempts.
    attempts: dict[AttemptKey, None] = field(default_factory=dict)
    #: Attempts that it had at its latest Hello, until it reports which of them it still wants.
    unconfirmed: dict[AttemptKey, None] = field(default_factory=dict)
    #: Attempts taken from the queue while it was out of reach. It submits them again after a Hello;
    #: if it returns without one, it never noticed, and it is sent `Failed` for each.
    unqueued: list[AttemptKey] = field(default_factory=list)
    #: The latest placed attempts that failed, or were given up while it was out of reach. It is
    #: sent `Failed` for them again at every Hello, because a closed connection loses messages.
    lost: deque[AttemptKey] = field(default_factory=lambda: deque(maxlen=LOST_MAX))
    #: What it reported that it wants, until what nobody knows of that was failed; and when.
    wanted: tuple[AttemptKey, ...] = ()
    wanted_since: float = 0.0
    #: The orders for workers that it keeps, by model, as `Order.kept_as`; None = it does not use
    #: this router, or is of a version that keeps none.
    kept_orders: dict[str, tuple[str, bool]] | None = None
    #: As what it was last told to keep the order of a model, and when.
    orders_told: dict[str, tuple[tuple[str, bool] | None, float]] = field(default_factory=dict)
