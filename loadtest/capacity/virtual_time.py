"""Virtual time: a heap of callbacks."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class VirtualTime:
    """Events of one instant run in the order in which they were added."""

    def __init__(self) -> None:
        #: Seconds.
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def at(self, instant: float, act: Callable[[], None]) -> None:
        """An instant in the past means now."""
        self._order += 1
        heapq.heappush(self._heap, (max(instant, self.now), self._order, act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def run(self, until: float, done: Callable[[], bool] | None = None) -> None:
        """Runs events until this instant, until `done` is true after one, or until none is left."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, act = heapq.heappop(heap)
            self.events += 1
            act()
            if done is not None and done():
                return
