"""The order for workers of one model: at most one is open, and it ends once. Sans-IO.

    out:                          ASKING ──kept──▶ ASKED ──new workers──▶ answered
    in:  PROPOSED ──kept──▶ DRAINING ──empty──▶ ASKING ──kept──▶ ASKED ──goodbye──▶ answered
    any of them ──deadline──▶ failed;  what was not asked yet may be taken back

Theory of operation: the router's state is soft, and a hook must not be called twice for one need.
So an order is first given to all gateways that use this router, which keep it, and only what all of
them have confirmed is carried out: before a worker is drained, and again before the hook is called.
A router that takes over hears of the order from any of them and waits for its end, in place of
giving its own. The hook's word counts for nothing, because it may hang, lie or answer twice. After
an order the controller rests: for `cooldown_ms` if it was answered, and for longer and longer while
orders fail.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from common.config import ScaleConfig
from common.messages import SCALE_NAMES_MAX, Role, ScaleOrder
from services.router.fleet.balance.controller import LOOK_SECONDS
from services.router.fleet.scale.need import Need

CLOSED_MAX = 64
LEFT_MAX = 64
STARTS_MAX = 3
BACKOFF_SECONDS_MAX = 3_600.0
SETTLE_SECONDS = 5.0
ASKED_SECONDS = 60.0
"""A request that no decode worker could take is a need for so long."""


class Phase(enum.StrEnum):
    """Of an open order."""

    #: Gateways are told of it, and nothing was done yet.
    PROPOSED = "proposed"
    #: The worker that is to stop gets nothing new.
    DRAINING = "draining"
    #: Gateways are told that the hook is called.
    ASKING = "asking"
    #: The hook was called, or may have been by an earlier router.
    ASKED = "asked"


class Outcome(enum.StrEnum):
    """Of an order that is over."""

    ANSWERED = "answered"
    FAILED = "failed"
    TAKEN_BACK = "taken back"


class Verdict(NamedTuple):
    """One look. An instant is in seconds on the core's clock."""

    at: float
    #: What should change; None = nothing should, or may.
    need: Need | None
    #: The reason, as one sentence.
    sentence: str


@dataclass(slots=True)
class Order:
    """Instants are seconds on the core's clock."""

    id: str
    need: Need
    why: str
    given: float
    #: When it has failed.
    deadline: float
    phase: Phase
    #: Names of the workers of the role that were here when it was given.
    names: frozenset[str]
    #: Name of the worker that is to stop, else empty.
    worker: str = ""
    #: When the hook was called; None = it was not, or not by this router.
    asked_at: float | None = None
    #: When the workers that came were last counted.
    counted_at: float = 0.0
    #: What the hook said or did, for an operator.
    heard: str = ""

    @property
    def asked(self) -> bool:
        """Whether the hook has been called, or may be as soon as gateways have confirmed it."""
        return self.phase in (Phase.ASKING, Phase.ASKED)

    @property
    def kept_as(self) -> tuple[str, bool]:
        """What gateways should keep."""
        return self.id, self.asked

    @property
    def what(self) -> str:
        """For an operator."""
        if self.need.out:
            return f"{self.need.workers} more {self.need.role} workers"
        return f"{self.need.role} worker {self.worker} should stop"


class Over(NamedTuple):
    """The latest order that is over."""

    at: float
    what: str
    outcome: Outcome
    #: Why, as one sentence.
    sentence: str


class Scale:
    """Of one model. `owner`: name and incarnation of the router, for the ids of its orders."""

    def __init__(self, config: ScaleConfig, owner: str, floor: int) -> None:
        self.config = config
        #: Decode workers that stay.
        self.floor = floor
        #: The latest look; None = there was none yet.
        self.verdict: Verdict | None = None
        #: The order that is open.
        self.open: Order | None = None
        #: The latest one that is over.
        self.over: Over | None = None
        #: Ids of those that are over, so that no gateway brings them back.
        self.closed: deque[str] = deque(maxlen=CLOSED_MAX)
        #: Identities of the workers that left because of an order: they are not expected back.
        self.left: deque[str] = deque(maxlen=LEFT_MAX)
        #: Names of workers that were drained for orders that are over, until they are seen here.
        self.resumes: deque[str] = deque(maxlen=LEFT_MAX)
        #: Orders that failed since the last one that was answered.
        self.failures = 0
        #: Until when no further order is given, and why; 0 = it may be.
        self.rest_until = 0.0
        #: When a request last came that no decode worker could take.
        self.asked_at: float | None = None
        self._owner = owner
        self._serial = 0
        self._starts: dict[Role, deque[float]] = {}
        #: Seconds between two looks; a simulation looks more often.
        self.look_s = LOOK_SECONDS
        #: Seconds after its start in which a router gives no order: its gateways have to connect.
        self.settle_s = SETTLE_SECONDS

    @property
    def on(self) -> bool:
        """Whether it looks at all."""
        return self.config.mode != "off"

    @property
    def acts(self) -> bool:
        """Whether what it sees becomes orders."""
        return self.config.mode == "on"

    @property
    def starts_from_zero(self) -> bool:
        """Whether a request waits for the first decode worker of its model to be started."""
        return self.acts and bool(self.config.out) and not self.floor

    def due(self, now: float) -> bool:
        return self.verdict is None or now - self.verdict.at >= self.look_s

    def missed(self, now: float) -> None:
        """A request came that no decode worker can take."""
        self.asked_at = now

    def asked_lately(self, now: float) -> bool:
        return self.asked_at is not None and now - self.asked_at <= ASKED_SECONDS

    def propose(
        self, need: Need, why: str, names: frozenset[str], now: float, worker: str = ""
    ) -> Order:
        """Opens an order. `worker`: name of the one that is to stop, else empty."""
        assert self.open is None, f"{self.open} is open"
        self._serial += 1
        phase = Phase.ASKING if need.out else Phase.PROPOSED
        deadline = now + self.config.deadline_ms / 1000
        name = f"{self._owner}-{self._serial}"
        self.open = Order(name, need, why, now, deadline, phase, names, worker)
        return self.open

    def adopt(self, kept: ScaleOrder, now: float) -> Order:
        """An order of an earlier router. Whether it called the hook is not known, so this one does
        not."""
        self.open = Order(
            kept.id,
            Need(kept.out, kept.role, kept.count),
            kept.why,
            now - kept.age_ms / 1000,
            now + min(kept.remaining_ms, self.config.deadline_ms) / 1000,
            Phase.ASKED if kept.asked or kept.out else Phase.PROPOSED,
            frozenset(kept.names),
            kept.worker,
        )
        return self.open

    def close(self, outcome: Outcome, sentence: str, now: float) -> Order:
        """Ends the open order."""
        order = self.open
        assert order is not None
        self.open = None
        self.closed.append(order.id)
        self.over = Over(now, order.what, outcome, sentence)
        if outcome is Outcome.FAILED:
            doubled = self.config.backoff_ms / 1000 * 2.0 ** min(self.failures, 16)
            self.failures += 1
            self.rest_until = now + min(BACKOFF_SECONDS_MAX, doubled)
            return order
        self.rest_until = now + self.config.cooldown_ms / 1000
        if outcome is Outcome.ANSWERED:
            self.failures = 0
            if order.need.out and order.asked_at is not None:
                starts = self._starts.setdefault(order.need.role, deque(maxlen=STARTS_MAX))
                starts.append(now - order.asked_at)
        return order

    def start_seconds(self, role: Role) -> float:
        """The longest of the latest times from an order to its workers; 0 = none was measured."""
        return max(self._starts.get(role, ()), default=0.0)

    def wait_seconds(self, now: float) -> float:
        """How long it takes until a decode worker of this model, which has none, is here: as
        measured, or else by the deadline."""
        starts, order = self.start_seconds(Role.DECODE), self.open
        whole = starts or self.config.deadline_ms / 1000
        if order is None:
            return (max(0.0, self.rest_until - now) if self.failures else 0.0) + whole
        begun = order.given if order.asked_at is None else order.asked_at
        if not order.need.out or order.need.role is not Role.DECODE:
            return max(0.0, order.deadline - now) + whole
        if now - begun < starts:
            return starts - (now - begun)
        return max(0.0, order.deadline - now)

    def wire(self, model: str, now: float) -> ScaleOrder | None:
        """The open order as gateways keep it."""
        order = self.open
        if order is None:
            return None
        return ScaleOrder(
            id=order.id,
            model=model,
            role=order.need.role,
            out=order.need.out,
            count=order.need.workers,
            why=order.why,
            age_ms=(now - order.given) * 1000,
            remaining_ms=max(0.0, order.deadline - now) * 1000,
            asked=order.asked,
            worker=order.worker,
            names=tuple(sorted(order.names))[:SCALE_NAMES_MAX],
        )

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        order = self.open
        if order is None:
            return
        assert order.id not in self.closed
        assert order.need.workers >= 1
        assert bool(order.worker) is not order.need.out
        assert order.asked or not order.need.out
