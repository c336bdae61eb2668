"""Requests per second that a split of workers can serve, on paper: the sums of the planner
(`demand` in `loadtest/plan/sizing.py`) with the curves that the router has measured.

A prefill worker computes one prompt after the other. A decode worker steps with all its slots full,
or with as many as its KV has room for. The slower phase decides; nobody serves more than is asked
for.
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
    """Requests per second that each phase can serve."""

    prefill: float
    decode: float

    def goodput(self, rate: float) -> float:
        return min(rate, ROOM * self.prefill, ROOM * self.decode)


def capacity(split: Split, mix: Mix, curves: Curves) -> Capacity:
    """Of this split, for requests like those of the mix."""
    prompt_s = max(1e-6, curves.prefill_s(max(1, round(mix.prompt))))
    streams = max(1, min(curves.slots, int(curves.kv_tokens / max(1.0, mix.kv))))
    stream_s = max(1e-6, curves.step_s(streams) * max(1.0, mix.output))
    return Capacity(split.prefills / prompt_s, split.decodes * streams / stream_s)


def wire_decides(mix: Mix, curves: Curves) -> bool:
    """Whether the KV of a prompt takes longer to move than to compute, twice over: then another
    prefill worker would only wait for the wire."""
    tokens = max(1, round(mix.prompt))
    return curves.exposed_s(tokens) > curves.prefill_s(tokens)


def neighbours(split: Split) -> list[Split]:
    """One worker changes its role; one of each role stays."""
    prefills, decodes = split
    found = [Split(prefills + 1, decodes - 1), Split(prefills - 1, decodes + 1)]
    return [one for one in found if min(one) >= 1]
