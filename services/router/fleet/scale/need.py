"""How many workers of which role a model needs, more or fewer than it has. Pure.

The load of a phase is counted in workers: the requests per second that came, by those that one
worker serves (`fleet/balance/goodput.py`). More workers are needed when it exceeds `busy_max` of
those that are ready in the short window and in the long one; fewer when with one less it would be
below `busy_min` in both, and the workers' own reports agree: where several routers share the
requests, each sees a part of them alone. A model without a decode worker needs one as soon as
somebody asks, and one that nobody has asked for `idle_ms` needs no more than its floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from common.config import ScaleConfig
from common.messages import Role
from services.router.fleet.balance.goodput import Curves, Split, capacity
from services.router.fleet.balance.mix import Mix

ROUNDING = 1e-9


class Fleet(NamedTuple):
    """The workers of one model."""

    #: Those that are ready.
    split: Split
    #: All that are here, ready or not.
    here: Split
    #: Of each role, those that have work, as they reported last.
    busy: Split
    #: Requests on the ready decode workers, and slots there, as they reported last.
    running: int
    slots: int
    #: Whether the model has prefill workers, now or in the fleet file.
    separate: bool
    #: Decode workers that stay.
    floor: int
    #: Whether a request came lately that no decode worker could take.
    asked: bool
    #: Whether no worker has had anything to do for `idle_ms`.
    idle: bool


class Need(NamedTuple):
    """What should change."""

    #: Whether workers are missing; otherwise one is too many.
    out: bool
    role: Role
    workers: int


class Loads(NamedTuple):
    """What is asked for in one window, in workers of each role."""

    prefill: float
    decode: float


NO_LOAD = Loads(0.0, 0.0)


def loads(mix: Mix, curves: Curves, local_s: Callable[[int], float], *, separate: bool) -> Loads:
    """`local_s`: seconds in which a decode worker computes a prompt of so many tokens itself."""
    one = capacity(Split(1, 1), mix, curves)
    if separate:
        return Loads(mix.rate / min(one.prefill, one.wire), mix.rate / one.decode)
    prompt_s = local_s(max(1, round(mix.prompt)))
    return Loads(0.0, mix.rate * (prompt_s + 1.0 / one.decode))


def without_decode(fleet: Fleet) -> Need | None:
    """What a model needs that no decode worker is there for; None = it has one, or nobody asks."""
    if fleet.here.decodes or not fleet.asked:
        return None
    return Need(out=True, role=Role.DECODE, workers=1)


def more(fleet: Fleet, windows: Sequence[Loads], config: ScaleConfig) -> tuple[Need | None, str]:
    """The role that lacks most, and how many workers of it."""
    if fleet.separate and fleet.split.decodes and not fleet.here.prefills:
        return Need(out=True, role=Role.PREFILL, workers=1), "there is no prefill worker"
    found: list[tuple[float, Need, str]] = []
    for role, ready, here, asked in _by_role(fleet, windows):
        least = min(asked, default=0.0)
        wanted = math.ceil(least / config.busy_max - ROUNDING)
        if not ready or wanted <= ready:
            continue
        count = min(wanted, config.workers_max) - here
        said = f"{least:.2f} {role} workers' work is asked for, and {ready} are ready"
        if count < 1:
            said += f"; but workers_max is {config.workers_max} and {here} are here"
        found.append((least / ready, Need(out=True, role=role, workers=max(0, count)), said))
    _, need, sentence = max(found, default=(0.0, None, ""), key=lambda one: one[0])
    return (need if need is not None and need.workers else None), sentence


def fewer(fleet: Fleet, windows: Sequence[Loads], config: ScaleConfig) -> tuple[Need | None, str]:
    """The role that has most to spare, of which one worker may stop."""
    if fleet.idle:
        windows = (NO_LOAD, NO_LOAD)
    found: list[tuple[float, Need, str]] = []
    for role, ready, _, asked in _by_role(fleet, windows):
        if not asked or ready <= _floor(fleet, role):
            continue
        most, left = max(asked), ready - 1
        if most and most >= config.busy_min * left:
            continue
        if not fleet.idle and _busy(fleet, role, left, config):
            continue
        said = f"{most:.2f} {role} workers' work is asked for, and {ready} are ready"
        found.append((most / ready, Need(out=False, role=role, workers=1), said))
    _, need, sentence = min(found, default=(0.0, None, ""), key=lambda one: one[0])
    return need, sentence


def _by_role(
    fleet: Fleet, windows: Sequence[Loads]
) -> list[tuple[Role, int, int, tuple[float, ...]]]:
    """Of each role: its workers that are ready, those that are here, and the load of each
    window."""
    split, here = fleet.split, fleet.here
    return [
        (Role.PREFILL, split.prefills, here.prefills, tuple(one.prefill for one in windows)),
        (Role.DECODE, split.decodes, here.decodes, tuple(one.decode for one in windows)),
    ]


def _floor(fleet: Fleet, role: Role) -> int:
    """How many stay. The last decode worker of a model stays as long as a prefill worker does,
    which is worth nothing without it."""
    if role is Role.PREFILL:
        return 1 if fleet.floor or not fleet.idle else 0
    if fleet.idle and not fleet.split.prefills:
        return fleet.floor
    return max(1, fleet.floor)


def _busy(fleet: Fleet, role: Role, left: int, config: ScaleConfig) -> bool:
    """Whether the workers themselves report more work than one fewer should have."""
    if role is Role.PREFILL:
        return fleet.busy.prefills > left
    slots = fleet.slots * left / max(1, fleet.split.decodes)
    return fleet.running > config.busy_min * slots
