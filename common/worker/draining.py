"""The end of a worker: it lets its requests finish, and what has not finished by then moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.telemetry.log import Logger
from common.worker.actions import WorkerCore

MOVE_SECONDS = 2.0
"""The end of the drain time, in which what is left moves; at most half of it."""


class Draining:
    """`look` is called after each event of the core."""

    def __init__(self, core: WorkerCore, log: Logger) -> None:
        self._core = core
        self._log = log
        self._idle = asyncio.Event()

    def look(self) -> None:
        if not self._core.active:
            self._idle.set()

    async def run(self, seconds: float, give_up: Callable[[bool], None]) -> None:
        """Waits until nothing is left, at most so many seconds. `give_up` makes the core give up
        what it still has, shortly before the end, and at the end once more, at once."""
        move = min(MOVE_SECONDS, seconds / 2)
        if await self._is_idle_within(seconds - move):
            return
        left = self._core.active
        sentence = f"{left} requests were still running near the end of the drain time"
        self._log.info("requests.moved", active=left, sentence=f"{sentence}: they are moved")
        give_up(False)
        if not await self._is_idle_within(move):
            left = self._core.active
            sentence = f"{left} requests were still running when the drain time ended"
            self._log.warning("drain.expired", active=left, sentence=sentence)
            give_up(True)

    async def _is_idle_within(self, seconds: float) -> bool:
        if not self._core.active:
            return True
        self._idle.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
