"""The placement policies by name, as the configuration and `baton ctl policy` name them."""

from __future__ import annotations

from collections.abc import Mapping

from services.router.placement.policies import (
    cost,
    least_loaded,
    prefix_affinity,
    round_robin,
    session_affinity,
)
from services.router.placement.types import Policy

_ALL: tuple[Policy, ...] = (cost, least_loaded, prefix_affinity, round_robin, session_affinity)
POLICIES: Mapping[str, Policy] = {policy.NAME: policy for policy in _ALL}
