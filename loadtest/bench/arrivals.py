"""When requests are meant to be sent: seconds since the load began, endless, never falling."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import count, takewhile

from loadtest.bench.asks import Ask


def constant(rate: float) -> Iterator[float]:
    return (number / rate for number in count())


def poisson(rate: float, seed: int) -> Iterator[float]:
    dice = random.Random(f"poisson{seed}")
    at = 0.0
    while True:
        at += dice.expovariate(rate)
        yield at


def burst(rate: float, size: int) -> Iterator[float]:
    """`size` at the same instant, so seldom that the mean rate is `rate`."""
    return ((number // size) * size / rate for number in count())


def timed(asks: Iterable[Ask], instants: Iterable[float]) -> Iterator[Ask]:
    return (ask._replace(at=at) for ask, at in zip(asks, instants, strict=False))


def until(asks: Iterable[Ask], seconds: float) -> Iterator[Ask]:
    """Those that are meant to be sent before `seconds`."""
    return takewhile(lambda ask: ask.at < seconds, asks)
