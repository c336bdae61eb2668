"""Finds the worker or the request that an operator named."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from common.errors import BatonError, Code
from services.router.records.attempt import Attempt
from services.router.records.worker import Worker
from services.router.tables import SharedTables

NAMES_MAX, IDS_MAX = 32, 5
RESPONSE_PREFIXES = ("chatcmpl-", "cmpl-", "embd-", "score-", "classify-", "pooling-")


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


def known_attempts(shared: SharedTables) -> Iterator[Attempt]:
    """Of requests that are queued, run, or are over."""
    return chain(shared.attempts(), shared.history, shared.refusals)


def known_request(shared: SharedTables, asked: str) -> str:
    """The id itself, or the only id that starts with it; with the client's prefix (`chatcmpl-…`) or
    without. Raises BatonError(NOT_FOUND | INVALID_REQUEST)."""
    for prefix in RESPONSE_PREFIXES:
        asked = asked.removeprefix(prefix)
    every = {attempt.request_id for attempt in known_attempts(shared)} | shared.recorder.ids()
    ids = sorted(known for known in every if known.startswith(asked))
    if asked in ids:
        return asked
    if not ids:
        kept = shared.settings.history
        sentence = f"no request starts with {asked[:96]!r}; the last {kept} that ended are kept"
        raise BatonError(Code.NOT_FOUND, sentence)
    if len(ids) > 1:
        named = ", ".join(ids[:IDS_MAX])
        sentence = f"{len(ids)} requests start with {asked[:96]!r}: {named}; say more of the id"
        raise BatonError(Code.INVALID_REQUEST, sentence)
    return ids[0]
