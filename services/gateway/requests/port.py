"""What HTTP and metrics read of a gateway's core: that of one fleet, or that of several cells."""

from __future__ import annotations

from typing import Protocol

from common.messages import Fleet
from services.gateway.requests.counters import Counters


class CoreView(Protocol):
    @property
    def counters(self) -> Counters: ...

    @property
    def router_up(self) -> bool:
        """Whether a router takes messages."""
        ...

    @property
    def draining(self) -> bool:
        """Whether new requests are refused because the process stops."""
        ...

    @property
    def active(self) -> int:
        """The number of live requests."""
        ...

    def fleet_of(self, model: str) -> Fleet | None:
        """What can be served of this model; None before a router reported it."""

    def live_of(self, model: str) -> tuple[int, int]:
        """The live requests for this model, and how many of them have no worker yet."""
        ...
