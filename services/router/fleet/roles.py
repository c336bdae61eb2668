"""Whether a worker may be ordered to take another role. Pure.

No model is left without a prefill or a decode worker that is ready, and a mixed one counts as both.
Nor is it without a decode worker while one empties. Besides, nothing changes while a rollout may be
going on: it counts on the workers of each role that it found. A rollout has no message of its own.
It shows by a worker that an operator drained, that stops or joins, or that left in good order a
moment ago.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from common.messages import Role
from services.router.placement.fingerprint_mismatch import difference
from services.router.records.states import WorkerState
from services.router.records.worker import Worker

RETURN_SECONDS = 60.0
"""For so long a worker that drained and left is thought to be on its way back."""
ROLES = (Role.PREFILL, Role.DECODE)
WITH_ENGINE = (*ROLES, Role.MIXED)


def why_not(workers: Collection[Worker], worker: Worker, role: Role, mode: str, now: float) -> str:
    """Why this one of the model's workers cannot take the role now; empty = it can. Nothing stands
    against its present role."""
    if worker.role not in WITH_ENGINE:
        return "it is a pool, which has no engine"
    if worker.warm is not None:
        return "it is a warm worker, which sleeps and wakes as a decode worker"
    if worker.role_state.configured is None:
        return "its baton-serve is older and cannot change its role; install this router's there"
    if role is worker.role:
        return ""
    if mode != "disaggregated":
        return f"mode {mode} has decode workers only"
    if not worker.ready and worker.next_role is None:
        return f"it is {worker.availability}; only a ready worker changes its role"
    others = [other for other in workers if other is not worker and other.role in WITH_ENGINE]
    return (
        _namesake(others, worker, role)
        or _unlike(others, worker, role)
        or _last(others, worker, role)
        or rollout(others, now)
    )


def _namesake(others: list[Worker], worker: Worker, role: Role) -> str:
    """Two workers of one role and name could not be told apart."""
    alike = [other for other in others if other.name == worker.name]
    taken = any({*role.parts} & {*other.role.parts, other.home[0]} for other in alike)
    return f"another worker is the {role} worker {worker.name}" if taken else ""


def _unlike(others: list[Worker], worker: Worker, role: Role) -> str:
    """Routers refuse a decode worker of other weights, and KV moves between like workers only."""
    for other in others:
        joined = {*role.parts} & {*other.role.parts}
        if joined and other.connected and other.fingerprint != worker.fingerprint:
            parts = difference(worker.fingerprint_parts, other.fingerprint_parts)
            return f"it differs from {other.name}: {parts or 'another fingerprint'}"
    return ""


def leaves(part: Role, role: Role) -> bool:
    """Whether a worker that is to take this role is missed in this part of its present one. While
    it empties it gets nothing new; but for so long decode workers compute prompts themselves."""
    return part is Role.DECODE or part not in role.parts


def _last(others: list[Worker], worker: Worker, role: Role) -> str:
    for part in worker.role.parts:
        if not leaves(part, role):
            continue
        if not any(part in other.role.parts and other.ready for other in others):
            lacks = f"no other {part} worker of {worker.model} is ready"
            return f"{lacks}; start one, or wait for one"
    return ""


def rollout(others: Iterable[Worker], now: float) -> str:
    """Which of these workers says that a rollout may be going on; empty = none does."""
    for other in others:
        left = other.left_drained and other.away and now - other.since < RETURN_SECONDS
        busy = other.state in (WorkerState.JOINING, WorkerState.DRAINING)
        if left or busy or (other.drained and other.connected):
            state = "has just left" if left else f"is {other.availability}"
            return f"{other.name} {state}: no role changes during a rollout; wait until it is ready"
    return ""
