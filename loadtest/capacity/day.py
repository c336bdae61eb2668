"""A day whose work shifts from prefill to decode and back, and what each split could do with it.

Requests come at a constant rate, and all ask for the same work; what changes is how much of it is
prefill: from `ratio` to 1 at midnight to 1 to `ratio` at noon, along a cosine that may be cut off
at both ends, as where there is a night and a working day. Either the lengths
of all requests shift, or there are two kinds, long prompts with short answers and short prompts
with long answers, and their shares do. In the latter case a split that has too few workers of a
phase still serves all of the kind that hardly needs it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from loadtest.capacity.profile import Profile
from loadtest.capacity.workload import Arrival, RequestShape, drawn

KINDS = (0.07, 0.93)
"""Share of prefill in the work of either kind."""
LEAD_SECONDS = 10.0
"""By so much sooner than the load the clairvoyant's workers change, so that streams can end."""


class Day(NamedTuple):
    """A fleet's day."""

    #: Without curves, and with room in the KV for all slots.
    profile: Profile
    workers: int
    #: How long it takes, in seconds; a real one, squeezed.
    seconds: float
    #: The work asked for, as a share of what all workers can do.
    load: float = 1.0
    #: The work of prefill by that of decode, when it is most; its inverse when it is least. 1 = it
    #: stays the same all day.
    ratio: float = 4.0
    #: Whether there are two kinds of requests.
    kinds: bool = False
    #: Seconds of work of a request, on workers that have no slot free.
    work: float = 1.6
    #: Above 1 the share moves so many times as fast and stays at its ends meanwhile.
    steepness: float = 1.0

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.load * self.workers / self.work

    def prefill_share(self, at: float) -> float:
        """Share of prefill in all work."""
        amplitude = self.ratio / (1 + self.ratio) - 0.5
        wave = self.steepness * math.cos(2 * math.pi * at / self.seconds)
        return 0.5 + amplitude * max(-1.0, min(1.0, wave))

    def shape(self, share: float) -> RequestShape:
        """Of a request with this share of prefill."""
        profile = self.profile
        token_s = profile.step_seconds(profile.max_num_seqs) / profile.max_num_seqs
        return RequestShape(
            prompt=round(self.work * share * profile.prefill_tokens_per_s),
            output=round(self.work * (1 - share) / token_s),
        )

    def ideal(self, at: float) -> int:
        """How many workers should prefill, on paper."""
        share = self.prefill_share(at)
        splits = range(1, self.workers)
        return max(splits, key=lambda n: min(n / share, (self.workers - n) / (1 - share)))

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """Of the whole day."""
        draw = random.Random(seed)
        low, high = KINDS
        at = draw.expovariate(self.rate)
        while at < self.seconds:
            share = self.prefill_share(at)
            if self.kinds:
                share = high if draw.random() < (share - low) / (high - low) else low
            yield drawn(draw, self.shape(share), at)
            at += draw.expovariate(self.rate)

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
