"""Which decode workers have stopped sending in the middle of their streams.

A worker whose process is stopped keeps its connections, and the router takes seconds of silence to
give it up. A stream need not wait for that: a worker that streams and has sent nothing for
`STALL_SECONDS_MIN` and for `PAUSES_MIN` times its own p99 pause has stalled. No worker is blamed
when many stall at once, when no other worker is ready, or when this gateway itself stood still: the
fault is then more likely here.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.telemetry.rolling_p99 import RollingP99

STALL_SECONDS_MIN = 1.0
PAUSES_MIN = 10.0
STALLED_SHARE_MAX = 0.34


class StallDetector:
    """Holds a row for each worker that streams."""

    def __init__(self) -> None:
        #: When tokens last came, by worker.
        self._last_tokens: dict[bytes, float] = {}
        #: The pauses between two messages with tokens, by worker.
        self._pauses: dict[bytes, RollingP99] = {}

    def record(self, worker: bytes, now: float) -> None:
        """The worker sent tokens."""
        last = self._last_tokens.get(worker)
        if last is not None:
            self._pauses.setdefault(worker, RollingP99()).add(now - last)
        self._last_tokens[worker] = now

    def forget(self, worker: bytes) -> None:
        """The worker is gone, or its streams were moved."""
        self._last_tokens.pop(worker, None)
        self._pauses.pop(worker, None)

    def stalled(
        self, streaming: Iterable[bytes], ready: int, now: float, *, late: bool = False
    ) -> list[tuple[bytes, float]]:
        """The workers to leave, each with the seconds for which it sent nothing. Call it several
        times a second while a worker is silent, and when a stream has ended. `streaming`: the
        workers that are in the middle of a stream. `ready`: the number of decode workers to which
        the router gives work. `late`: as in `Tick`."""
        busy = set(streaming)
        for worker in list(self._last_tokens):
            if worker not in busy:
                del self._last_tokens[worker]
            elif late:
                self._last_tokens[worker] = now
        found = [
            (worker, now - at)
            for worker, at in self._last_tokens.items()
            if self._is_stalled(worker, now - at)
        ]
        most = max(1, int(ready * STALLED_SHARE_MAX))
        return found if ready > 1 and len(found) <= most else []

    def _is_stalled(self, worker: bytes, seconds: float) -> bool:
        if seconds <= STALL_SECONDS_MIN:
            return False
        pauses = self._pauses.get(worker)
        return pauses is None or seconds > PAUSES_MIN * pauses.p99_ms() / 1000
