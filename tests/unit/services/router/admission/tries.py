"""Queued tries for tests of admission."""

from __future__ import annotations

from itertools import count

from common.messages import PriorityClass
from services.router.placement_types import Ask
from services.router.records import Try

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
    attempt: int = 1,
) -> Try:
    return Try(
        request_id=f"{tenant}-{next(IDS)}",
        attempt=attempt,
        gateway="g0|1",
        ask=Ask(prompt, out),
        body=body,
        received=1.0,
        tenant=tenant,
        priority=priority,
        weight=weight,
        cost=cost,
    )
