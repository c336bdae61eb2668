"""Who asks for what and when: open-loop arrivals, since clients do not wait for each other."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

from loadtest.bench.asks import Ask, from_rows
from loadtest.capacity.prefix import Part, chained
from loadtest.traces.rows import Row


class Arrival(NamedTuple):
    """At `at` seconds a request with `prompt` tokens that will say `output`, and says that it wants
    `max_tokens`. `deadline_ms` as in Submit, 0 = none. `parts`: what the prompt is made of, all of
    it; empty = not known, and unlike any other."""

    at: float
    prompt: int
    output: int
    max_tokens: int
    tenant: str = ""
    deadline_ms: float = 0.0
    parts: tuple[Part, ...] = ()


class Shape(NamedTuple):
    """Mean tokens. `spread`: each is drawn uniformly from mean x (1 - spread .. 1 + spread).
    `slack`: max_tokens is the output's mean times this, at least the output drawn."""

    prompt: int = 1_500
    output: int = 200
    spread: float = 0.5
    slack: float = 2.0
    deadline_ms: float = 0.0


def poisson(
    rate: float, seconds: float, shape: Shape, seed: int, tenant: str = ""
) -> Iterator[Arrival]:
    """`rate` requests per second for `seconds`."""
    draw = random.Random(seed)
    at = draw.expovariate(rate)
    while at < seconds:
        output = _around(draw, shape.output, shape.spread)
        yield Arrival(
            at=at,
            prompt=_around(draw, shape.prompt, shape.spread),
            output=output,
            max_tokens=max(output, int(shape.output * shape.slack)),
            tenant=tenant,
            deadline_ms=shape.deadline_ms,
        )
        at += draw.expovariate(rate)


def recorded(rows: Iterable[Row], *, speed: float = 1.0, scale: float = 1.0) -> Iterator[Arrival]:
    """A trace `speed` times as fast, with all lengths times `scale`."""
    return map(of_ask, from_rows(rows, speed=speed, scale=scale))


def of_ask(ask: Ask) -> Arrival:
    """The same request as `baton bench` would send it."""
    return Arrival(
        at=ask.at,
        prompt=ask.prompt,
        output=ask.output,
        max_tokens=ask.output,
        parts=chained(ask.pieces),
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
