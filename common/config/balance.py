"""`[router.balance]`: whether the router watches how many workers prefill and how many decode, and
whether it changes that. `[router.scale]`: whether it has workers started and stopped."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from common.config.base import Count, Milliseconds, Section


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


class ScaleConfig(Section, frozen=True):
    """The controller of numbers. For each model it compares what its workers can serve with what is
    asked for, as `[router.balance]` measures both, and has workers started and stopped by a hook of
    yours; `baton ctl balance` shows what it would do, what is under way, and why nothing is.

    A hook is a command, run without a shell, or an `http://` or `https://` URL. It gets one JSON
    object, on standard input or as the body of a POST: `id`, `direction` (`out` or `in`), `model`,
    `role`, `count`, `why`, `deadline` and `deadline_ms` (until when, and what is left), `workers`
    (the names that are here) and, if one is to stop, `worker` (its name; it is empty). What the
    hook answers counts for nothing: an order is done when so many workers of other names have said
    Hello, or that worker its goodbye, and has failed when neither came before its deadline."""

    mode: Literal["off", "dry", "on"] = "off"
    """`off` watches nothing; `dry` says what it would order; `on` orders it, one order a model at a
    time."""
    out: str = ""
    """Hook that starts workers; empty starts none."""
    in_: str = field(default="", name="in")
    """Hook that stops a worker, which was drained before; empty stops none."""
    deadline_ms: Annotated[float, Meta(ge=1_000, le=86_400_000)] = 600_000.0
    """Time after which an order has failed. A worker that loads a large model takes minutes."""
    hook_ms: Annotated[float, Meta(ge=100, le=600_000)] = 30_000.0
    """Time that the command or the webhook itself may take; it is ended then."""
    workers_max: Count = 16
    """Workers of one role of a model beyond which none is ordered."""
    busy_max: Annotated[float, Meta(gt=0, le=1)] = 0.85
    """Share of what a role's workers can serve; more asked for, in the last 30 s and in
    `balance.long_ms`, and workers are ordered."""
    busy_min: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    """The same share with one worker fewer; less asked for, and one is to stop. Less than
    `busy_max`."""
    idle_ms: Annotated[float, Meta(ge=1_000)] = 600_000.0
    """Time for which all workers of a model have had nothing to do, after which they are stopped
    one after the other, down to one a role; down to none where the model's `floor` is 0."""
    cooldown_ms: Milliseconds = 60_000.0
    """Time between the end of an order and the next one of the same model."""
    backoff_ms: Annotated[float, Meta(ge=1_000)] = 60_000.0
    """Time after a failed order until the next; twice as long after each further failure, an hour
    at most."""
