"""The placement policies by name, as configuration and `baton ctl policy` say it."""

from __future__ import annotations

from collections.abc import Mapping

from services.router.placement_types import Policy
from services.router.policies import (
    cost,
    least_loaded,
    prefix_affinity,
    round_robin,
    session_affinity,
)

_ALL: tuple[Policy, ...] = (cost, least_loaded, prefix_affinity, round_robin, session_affinity)
POLICIES: Mapping[str, Policy] = {policy.NAME: policy for policy in _ALL}
