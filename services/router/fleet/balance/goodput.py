"""Requests per second that a split of workers can serve, on paper: the sums of the planner
(`demand` in `loadtest/plan/sizing.py`) with the curves that the router has measured.

A prefill worker computes one prompt after the other, and its KV leaves one transfer after the
other. A decode worker steps with all its slots full, or with as many as its KV has room for. What
is slowest decides; nobody serves more than is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.router.fleet.balance.mix import Mix

ROOM = 0.97
"""A phase that is asked for more than this of its capacity falls behind."""


class Split(NamedTuple):
    """Ready workers of a model by role."""

    prefills: int
    decodes: int

    @property
    def name(self) -> str:
        return f"{self.prefills}P+{self.decodes}D"


class Curves(NamedTuple):
    """What the workers of a model were measured to do."""

    #: Seconds in which a prefill worker computes a prompt of so many tokens.
    prefill_s: Callable[[int], float]
    #: Seconds of a decode step of a batch of this size.
    step_s: Callable[[int], float]
    #: Seconds for which the KV of a prompt is still on the wire when it is computed.
    exposed_s: Callable[[int], float]
    #: Streams of one decode worker at once, at most.
    slots: int
    #: Its KV, in tokens.
    kv_tokens: int


class Capacity(NamedTuple):
    """Requests per second that each phase can serve. One worker has the capacity of the split
    `1P+1D`."""

    prefill: float
    decode: float
    #: What the wire can move away from the prefill workers; never more than `prefill` while it
    #: shows, infinite while it does not.
    wire: float = float("inf")

    def goodput(self, rate: float) -> float:
        return min(rate, ROOM * min(self))


def capacity(split: Split, mix: Mix, curves: Curves) -> Capacity:
    """Of this split, for requests like those of the mix."""
    tokens = max(1, round(mix.prompt))
    prompt_s, exposed_s = max(1e-6, curves.prefill_s(tokens)), curves.exposed_s(tokens)
    streams = max(1, min(curves.slots, int(curves.kv_tokens / max(1.0, mix.kv))))
    stream_s = max(1e-6, curves.step_s(streams) * max(1.0, mix.output))
    wire = split.prefills / (prompt_s + exposed_s) if exposed_s > 0 else float("inf")
    return Capacity(split.prefills / prompt_s, split.decodes * streams / stream_s, wire)


def wire_decides(split: Split, mix: Mix, curves: Curves) -> bool:
    """Whether the wire is the bottleneck: the KV of a prompt takes longer to move than to compute,
    twice over, and decode workers could take more than it brings. Then no role is the cure."""
    tokens = max(1, round(mix.prompt))
    limits = capacity(split, mix, curves)
    return curves.exposed_s(tokens) > curves.prefill_s(tokens) and limits.wire == min(limits)


def neighbours(split: Split) -> list[Split]:
    """One worker changes its role; one of each role stays."""
    prefills, decodes = split
    found = [Split(prefills + 1, decodes - 1), Split(prefills - 1, decodes + 1)]
    return [one for one in found if min(one) >= 1]


def best(split: Split, mix: Mix, curves: Curves) -> Split:
    """The split of as many workers that serves most. In a large fleet one worker is a small share,
    and only a split that is farther away shows how much there is to gain."""
    workers = sum(split)
    one = capacity(Split(1, 1), mix, curves)
    prefill = min(one.prefill, one.wire)
    ideal = workers * one.decode / (prefill + one.decode)
    tried = [min(workers - 1, max(1, int(ideal) + more)) for more in (0, 1)]
    splits = [Split(prefills, workers - prefills) for prefills in tried]
    return max(splits, key=lambda one: min(capacity(one, mix, curves)))
