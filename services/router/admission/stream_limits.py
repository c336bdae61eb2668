"""How many streams decode workers may have so that each gets its tokens in time.

A worker is *patient* where a single stream would be too slow already: a CPU beside GPUs, say. It is
given the lowest class alone, which is promised no pace. That must have been measured of it lately:
a worker of which nothing is known, or nothing any more, gets one stream to be measured by. Where
all workers would be patient, none is, and no limit holds: somebody has to serve.
"""

from __future__ import annotations

from typing import NamedTuple

from services.router.estimates.step_rate import StepRate

MARGIN = 0.95
"""Share of the limit that is used: steps differ."""
KNOWN_SECONDS = 60.0


class StreamLimit(NamedTuple):
    """Of one worker."""

    slots: int
    """Streams that it may have now."""
    patient: bool


def stream_limits(
    workers: dict[str, tuple[float, int, bool]], steps: StepRate, longest_s: float
) -> dict[str, StreamLimit]:
    """`workers`: by identity the speed of each, its slots, and whether its speed is known. Workers
    of one speed are looked at once."""
    within = {
        alike: steps.streams_within(longest_s * MARGIN * alike[0], alike[1])
        for alike in {(speed, slots) for speed, slots, _ in workers.values()}
    }
    found = {
        identity: StreamLimit(within[speed, slots] or (slots if known else 1), False)
        for identity, (speed, slots, known) in workers.items()
    }
    slow = {
        identity
        for identity, (speed, slots, known) in workers.items()
        if known and not within[speed, slots]
    }
    if len(slow) == len(workers):
        return found
    return found | {identity: found[identity]._replace(patient=True) for identity in slow}
