"""Queued attempts for tests of admission."""

from __future__ import annotations

from itertools import count

from common.messages import PriorityClass
from services.router.placement.types import ResourceRequest
from services.router.records.attempt import Attempt

IDS = count()


def queued(
    tenant: str = "t",
    *,
    cost: float = 100.0,
    weight: float = 1.0,
    priority: PriorityClass = PriorityClass.STANDARD,
    prompt: int = 80,
    out: int = 10,
    body: bytes = b"body",
    number: int = 1,
) -> Attempt:
    return Attempt(
        request_id=f"{tenant}-{next(IDS)}",
        number=number,
        gateway="g0|1",
        request=ResourceRequest(prompt, out),
        body=body,
        received=1.0,
        tenant=tenant,
        priority=priority,
        weight=weight,
        cost=cost,
    )
