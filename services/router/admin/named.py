"""Finds the worker or the live request that an operator named."""

from __future__ import annotations

from common.errors import BatonError, Code
from services.router.records.attempt import Attempt
from services.router.records.worker import Worker
from services.router.tables import SharedTables

NAMES_MAX = 32


def worker_named(shared: SharedTables, name: str) -> Worker:
    """A name that is used in both roles needs its role: `decode/x`. Raises BatonError(NOT_FOUND |
    INVALID_REQUEST) that lists the known names."""
    role, _, bare = name.rpartition("/")
    found = [
        worker
        for worker in shared.workers()
        if worker.connected and worker.name == bare and role in ("", worker.role.value)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(f"{worker.role}/{worker.name}" for worker in found)
        raise BatonError(Code.INVALID_REQUEST, f"two workers are named {bare}: say {choices}")
    names = sorted(worker.name for worker in shared.workers() if worker.connected)
    known = ", ".join(names[:NAMES_MAX]) or "none"
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    raise BatonError(Code.NOT_FOUND, f"no worker {name[:64]!r}; there are: {known}{more}")


def request_named(shared: SharedTables, request_id: str) -> Attempt:
    """The newest attempt. Raises BatonError(NOT_FOUND)."""
    tables = shared.holder_of_request(request_id)
    if tables is None:
        sentence = f"no request {request_id[:96]!r} is queued or running; `requests` lists them"
        raise BatonError(Code.NOT_FOUND, sentence)
    return tables.attempts[request_id, tables.newest[request_id]]
