"""When requests are meant to be sent: seconds since the load began, endless, never falling."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import count, takewhile

from loadtest.bench.request_specs import RequestSpec


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


def timed(specs: Iterable[RequestSpec], instants: Iterable[float]) -> Iterator[RequestSpec]:
    return (spec._replace(at=at) for spec, at in zip(specs, instants, strict=False))


def until(specs: Iterable[RequestSpec], seconds: float) -> Iterator[RequestSpec]:
    """Those that are meant to be sent before `seconds`."""
    return takewhile(lambda spec: spec.at < seconds, specs)
