"""A day whose work shifts from prefill to decode and back, and what each split could do with it.

Two kinds of requests come: long prompts with short answers, and short prompts with long ones. All
the time they ask for the same work, a share of what all workers together can do, if only the right
ones prefill; what changes is the ratio of the two phases, from `ratio` to 1 at midnight to 1 to
`ratio` at noon, along a cosine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from loadtest.capacity.profile import Profile
from loadtest.capacity.workload import Arrival, RequestShape, drawn

LONG_PROMPT = RequestShape(prompt=4_000, output=50)
LONG_ANSWER = RequestShape(prompt=400, output=300)
GRANT = 0.95
LEAD_SECONDS = 10.0
"""By so much sooner than the load the clairvoyant's workers change: as long as streams take to
end."""


class Day(NamedTuple):
    """A fleet's day."""

    profile: Profile
    workers: int
    #: How long it takes, in seconds; a real one, squeezed.
    seconds: float
    #: The work asked for, as a share of what all workers can do.
    load: float = 1.0
    #: The work of prefill by that of decode, when it is most; its inverse when it is least. 1 = it
    #: stays the same all day.
    ratio: float = 4.0
    shapes: tuple[RequestShape, RequestShape] = (LONG_PROMPT, LONG_ANSWER)

    def prefill_share(self, at: float) -> float:
        """Share of prefill in all work."""
        amplitude = self.ratio / (1 + self.ratio) - 0.5
        return 0.5 + amplitude * math.cos(2 * math.pi * at / self.seconds)

    def rates(self, at: float) -> tuple[float, float]:
        """Long prompts and long answers per second."""
        work, share = self.load * self.workers, self.prefill_share(at)
        (p, d), (q, e) = map(self.seconds_of, self.shapes)
        prefill, decode = work * share, work * (1 - share)
        det = p * e - q * d
        prompts, answers = (prefill * e - q * decode) / det, (p * decode - prefill * d) / det
        return max(0.0, prompts), max(0.0, answers)

    def ideal(self, at: float) -> int:
        """How many workers should prefill, on paper."""
        share = self.prefill_share(at)
        splits = range(1, self.workers)
        return max(splits, key=lambda n: min(n / share, (self.workers - n) / (1 - share)))

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """Of the whole day."""
        draw = random.Random(seed)
        most = 1.01 * max(sum(self.rates(n * self.seconds / 200)) for n in range(201))
        at = draw.expovariate(most)
        while at < self.seconds:
            prompts, answers = self.rates(at)
            dice = draw.uniform(0.0, most)
            if dice < prompts + answers:
                yield drawn(draw, self.shapes[dice >= prompts], at)
            at += draw.expovariate(most)

    def orders(self) -> list[tuple[float, int]]:
        """What somebody orders who knows the day, one change at a time (`Scenario.orders`)."""
        found: list[tuple[float, int]] = []
        now = self.ideal(0.0)
        for second in range(round(self.seconds)):
            wanted = self.ideal(second + LEAD_SECONDS)
            if wanted != now:
                now += 1 if wanted > now else -1
                found.append((float(second), now))
        return found

    def seconds_of(self, shape: RequestShape) -> tuple[float, float]:
        """Work of a request: seconds of a prefill worker, and of a full decode worker."""
        profile = self.profile
        prefill = 1 / profile.prefill_capacity(1, shape.prompt)
        decode = profile.decode_capacity(1, shape.prompt, shape.output * shape.slack, GRANT)
        return prefill, 1 / (decode * shape.slack)
