"""`[router.degradation]`: when right but expensive answers count as a fault."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Count, Section

Share = Annotated[float, Meta(gt=0, le=1)]


class DegradationConfig(Section, frozen=True):
    """When the router raises an alarm because disaggregation works badly or not at all, although
    every request is answered.

    A handoff whose bytes are not what its blocks weigh always raises one. A rate clears its alarm
    when it falls to `clear_share` of its limit, a count when it falls to 0."""

    window_ms: Annotated[float, Meta(ge=1_000)] = 60_000.0
    """Period that is judged: what happened before it does not count."""
    handoffs_min: Count = 20
    """Handoffs in the period below which their failures are not judged as a share."""
    recomputed_share: Share = 0.1
    """Share of the handoffs whose prompt decode computed itself, from which the alarm is raised."""
    clear_share: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    """Share of its limit to which a rate must fall before its alarm clears. One that hovers at its
    limit does not flutter."""
    prompts_min: Count = 10
    """Prompts that a prefill worker should have computed, below which their failure to reach one is
    not judged."""
    prefill_idle_ms: Annotated[float, Meta(ge=1_000)] = 60_000.0
    """Time in which none of those prompts reached a prefill worker, from which the alarm is
    raised."""
    digest_mismatches: Count = 1
    """Digest mismatches in the period from which the alarm is raised. One is one too many: sound
    links have none."""
    leases_expired: Count = 1
    """Leases that expired in the period from which the alarm is raised. A sound fleet has none."""
