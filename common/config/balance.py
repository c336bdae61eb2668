"""`[router.balance]`: whether the router watches how many workers prefill and how many decode."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from common.config.base import Milliseconds, Section


class BalanceConfig(Section, frozen=True):
    """The controller of roles. For each model it compares what the present prefill and decode
    workers can serve with what they could if one of them changed its role; `baton ctl balance`
    shows what it sees, what it would do, and why."""

    mode: Literal["off", "dry"] = "off"
    """`off` watches nothing; `dry` says what it would do and does nothing."""
    gain_min: Annotated[float, Meta(ge=0, le=10)] = 0.1
    """By how much more of the load, as a share, a change has to serve: for the requests of the last
    30 s and for those of the last 10 min."""
    cooldown_ms: Milliseconds = 60_000.0
    """Time after a change of role in which there is no other of the same model."""
