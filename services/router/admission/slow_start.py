"""How many slots a worker that came back is given, so that it is not buried while it is cold."""

from __future__ import annotations

import math


def slots(slots_max: int, since: float, ramp: float, first_share: float) -> int:
    """`since`: seconds since it came back; from `first_share` of its slots linearly to all of them
    after `ramp` seconds. At least 1."""
    if since >= ramp:
        return slots_max
    share = first_share + (1.0 - first_share) * max(0.0, since) / ramp
    return min(slots_max, max(1, math.ceil(slots_max * share)))
