"""Open-loop arrivals: clients do not wait for each other."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

from common.messages import PriorityClass
from loadtest.bench.request_specs import RequestSpec, from_rows
from loadtest.capacity.prompt_parts import Part, chained
from loadtest.traces.rows import Row


class Arrival(NamedTuple):
    """One request."""

    #: Seconds.
    at: float
    prompt: int
    #: Tokens that it will generate.
    output: int
    #: The limit that it names.
    max_tokens: int
    tenant: str = ""
    #: As in Submit, 0 = none.
    deadline_ms: float = 0.0
    #: The whole prompt by parts; empty if unknown, then no other prompt shares a prefix with it.
    parts: tuple[Part, ...] = ()
    #: Name of the model that it asks for; empty = the only one.
    model: str = ""
    priority: PriorityClass = PriorityClass.STANDARD


class RequestShape(NamedTuple):
    """The lengths of requests."""

    #: Mean tokens.
    prompt: int = 1_500
    #: Mean tokens.
    output: int = 200
    #: Lengths are drawn uniformly from mean x (1 - spread .. 1 + spread).
    spread: float = 0.5
    #: `max_tokens` is the mean output times this, but at least the output that is drawn.
    slack: float = 2.0
    deadline_ms: float = 0.0


def poisson(
    rate: float, seconds: float, shape: RequestShape, seed: int, tenant: str = ""
) -> Iterator[Arrival]:
    """`rate` requests per second for `seconds`."""
    draw = random.Random(seed)
    at = draw.expovariate(rate)
    while at < seconds:
        yield drawn(draw, shape, at, tenant)
        at += draw.expovariate(rate)


def drawn(draw: random.Random, shape: RequestShape, at: float, tenant: str = "") -> Arrival:
    """One request of this shape."""
    output = _around(draw, shape.output, shape.spread)
    return Arrival(
        at=at,
        prompt=_around(draw, shape.prompt, shape.spread),
        output=output,
        max_tokens=max(output, int(shape.output * shape.slack)),
        tenant=tenant,
        deadline_ms=shape.deadline_ms,
    )


def recorded(rows: Iterable[Row], *, speed: float = 1.0, scale: float = 1.0) -> Iterator[Arrival]:
    """A trace `speed` times as fast, with all lengths times `scale`."""
    return map(of_spec, from_rows(rows, speed=speed, scale=scale))


def of_spec(spec: RequestSpec) -> Arrival:
    """The same request as `baton bench` would send it."""
    return Arrival(
        at=spec.at,
        prompt=spec.prompt,
        output=spec.output,
        max_tokens=spec.output,
        parts=chained(spec.pieces),
    )


def resized(arrival: Arrival, times: float) -> Arrival:
    """Its prompt `times` as long. Where a part ends follows from where it ended, so that prompts
    which began alike still do."""
    ends = [round(end * times) for end in accumulate(part.tokens for part in arrival.parts)]
    parts = tuple(
        part._replace(tokens=after - before)
        for part, (before, after) in zip(arrival.parts, pairwise([0, *ends]), strict=True)
        if after > before
    )
    return arrival._replace(prompt=max(1, round(arrival.prompt * times)), parts=parts)


def _around(draw: random.Random, mean: int, spread: float) -> int:
    return max(1, round(mean * draw.uniform(1 - spread, 1 + spread)))
