"""`[router.degradation]`: from when on answers that are right but dearly made count as a fault."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Count, Section

Share = Annotated[float, Meta(gt=0, le=1)]


class DegradationConfig(Section, frozen=True):
    """When the router says aloud that disaggregation works badly or not at all, though every
    request is answered. What happened in the last `window_ms` counts.

    `recomputed_share`: of the handoffs, `handoffs_min` or more of them, were computed by decode
    instead. `prompts_min` prompts that a prefill worker should have computed came, for
    `prefill_idle_ms` or longer, and none was. `digest_mismatches`, `leases_expired`: so many or
    more. A handoff whose bytes are not what its blocks weigh always counts. A share that fell to
    `clear_share` of its limit, and a count that fell to 0, is well again."""

    window_ms: Annotated[float, Meta(ge=1_000)] = 60_000.0
    handoffs_min: Count = 20
    recomputed_share: Share = 0.1
    clear_share: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    prompts_min: Count = 10
    prefill_idle_ms: Annotated[float, Meta(ge=1_000)] = 60_000.0
    digest_mismatches: Count = 1
    leases_expired: Count = 1
