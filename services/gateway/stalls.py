"""Which decode workers have stopped speaking in the middle of their streams.

A worker that is stopped keeps its connections, and the router takes seconds of silence to give it
up; a stream needs not wait for that. One that streams and has said nothing for `SECONDS_MIN` and
`STEPS` of its own p99 pause is silent. Nobody is blamed when many fall silent at once, when nobody
is left to go to, or when this gateway itself stood still: then the fault is likelier here.
"""

from __future__ import annotations

from collections.abc import Iterable

from common.engine.step_times import StepTimes

SECONDS_MIN = 1.0
STEPS = 10.0
SHARE_MAX = 0.34
LATE_TICK_SECONDS = 0.5


class Stalls:
    """Has a row for each worker that streams; `streaming` says who does."""

    def __init__(self) -> None:
        self._heard: dict[bytes, float] = {}
        self._pauses: dict[bytes, StepTimes] = {}
        self._looked: float | None = None

    def heard(self, worker: bytes, now: float) -> None:
        """It spoke of a stream of ours."""
        last = self._heard.get(worker)
        if last is not None:
            self._pauses.setdefault(worker, StepTimes()).add(now - last)
        self._heard[worker] = now

    def forget(self, worker: bytes) -> None:
        """It is gone."""
        self._heard.pop(worker, None)
        self._pauses.pop(worker, None)

    def silent(
        self, streaming: Iterable[bytes], ready: int, now: float
    ) -> list[tuple[bytes, float]]:
        """At every tick. Who is to be left, and the seconds for which it said nothing. `ready`:
        decode workers that the router gives work to."""
        gap = now - self._looked if self._looked is not None else 0.0
        self._looked = now
        busy = set(streaming)
        for worker in list(self._heard):
            if worker not in busy:
                del self._heard[worker]
            elif gap > LATE_TICK_SECONDS:
                self._heard[worker] = now
        found = [
            (worker, now - at)
            for worker, at in self._heard.items()
            if self._is_over(worker, at, now)
        ]
        return found if ready > 1 and len(found) <= max(1, int(ready * SHARE_MAX)) else []

    def _is_over(self, worker: bytes, heard: float, now: float) -> bool:
        if now - heard <= SECONDS_MIN:
            return False
        pauses = self._pauses.get(worker)
        return pauses is None or now - heard > STEPS * pauses.p99_ms() / 1000
