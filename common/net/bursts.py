"""Work that comes in bursts, done in parts between which the event loop runs other callbacks.

A part ends after `BURST` pieces, and after `BURST_SECONDS` if they take longer: others wait for the
time that pieces take and not for their number. The next part is due once, however often it is asked
for meanwhile, or the parts of one turn of the loop would be as many as the pieces that asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BURST = 128
BURST_SECONDS = 0.005


class Bursts:
    """`take` does one piece and returns False if there is none. `clock`: seconds."""

    def __init__(
        self, take: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._take = take
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = False

    def start(self) -> None:
        """On the running loop; nothing is done before."""
        self._loop = asyncio.get_running_loop()
        self.soon()

    def soon(self) -> None:
        """In the loop's next turn."""
        if self._loop is not None and not self._due:
            self._due = True
            self._loop.call_soon(self._run_due)

    def run(self, seconds: float = BURST_SECONDS) -> None:
        """One part, now; the rest soon."""
        until = self._clock() + seconds
        for _ in range(BURST):
            if not self._take():
                return
            if self._clock() >= until:
                break
        self.soon()

    def _run_due(self) -> None:
        self._due = False
        self.run()
