"""`[router.balance]`: whether the router watches how many workers prefill and how many decode, and
whether it changes that."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from common.config.base import Section


class BalanceConfig(Section, frozen=True):
    """The controller of roles. For each model it compares what the present prefill and decode
    workers can serve with what they could if one of them changed its role; `baton ctl balance`
    shows what it sees, what it would do or did, and why."""

    mode: Literal["off", "dry", "on"] = "off"
    """`off` watches nothing; `dry` says what it would do and does nothing; `on` also orders workers
    to change their role, one at a time."""
    gain_min: Annotated[float, Meta(ge=0, le=10)] = 0.1
    """By how much more of the load, as a share, a change has to serve: for the requests of the last
    30 s and for those of `long_ms`."""
    long_ms: Annotated[float, Meta(ge=30_000, le=3_600_000)] = 120_000.0
    """The longer one of the two periods whose load is looked at. A router changes no role before it
    has watched for as long. Shorter follows the load sooner, longer is misled less by waves."""
    cooldown_ms: Annotated[float, Meta(ge=60_000)] = 60_000.0
    """Time after a change of role, or an order, in which there is no other of the same model."""
