"""Streams that ended before the report of their handoff came.

The engine's tokens and the report arrive over different channels, so a short stream on a busy
machine may be over first. Its start was told without the report by then; it is told once more with
it, so that routers can explain the request. What never comes is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from common.engine.port import engine_key
from common.kv.messages import KvDone
from common.messages import DecodeStarted

AWAITED_MAX = 256
"""The one that waits longest is forgotten first."""


class LateReports:
    """The starts that were told without a report, by the engine's key of the attempt."""

    def __init__(self) -> None:
        self._awaited: OrderedDict[str, DecodeStarted] = OrderedDict()

    def wait_for(self, started: DecodeStarted) -> None:
        self._awaited[engine_key(started.request_id, started.attempt)] = started
        if len(self._awaited) > AWAITED_MAX:
            self._awaited.popitem(last=False)

    def take(self, done: KvDone) -> list[DecodeStarted]:
        """The start with its report; none if nobody waits for this one."""
        started = self._awaited.pop(engine_key(done.request_id, done.attempt), None)
        if started is None:
            return []
        return [msgspec.structs.replace(started, kv=done.report, kv_ms=started.elapsed_ms)]

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._awaited) <= AWAITED_MAX
        assert all(started.kv is None for started in self._awaited.values())
