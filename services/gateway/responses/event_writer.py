"""Writes the events of the responses that this process runs into the ledger.

Theory of operation: events wait in memory for the ledger's thread, and what came within
`PASS_SECONDS` is one transaction, of whichever responses it is. A follower is told of an event when
it is in the ledger, in this process as in others, so that no gateway can be lost with an event that
a client has seen and the ledger has not. One response has at most `stream_mib_max` of events. The
event that would be more is replaced by an error and those after it are dropped; the response goes
on.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.errors import BatonError, Code
from common.process.lifecycle import Tasks
from common.telemetry.log import Logger
from services.gateway.jobs.leases import Key, Loop
from services.gateway.jobs.ledger import Ledger
from services.gateway.responses import conversation, events
from services.gateway.responses.conversation import ERROR_EVENT, FIRST_EVENTS, LAST_EVENTS
from services.gateway.responses.records import Held

PASS_SECONDS = 0.05
#: Said before the run, or by the response as it ended.
UNTOLD = (FIRST_EVENTS[0], *LAST_EVENTS, ERROR_EVENT)


class Run:
    """One run of a response that is streamed. `wake` is called when something waits."""

    def __init__(self, held: Held, bytes_max: int, wake: Callable[[], None]) -> None:
        assert held.stream_from is not None
        self.held = held
        #: Number of the first event that waits.
        self.next = held.stream_from
        self.waiting: list[bytes] = []
        self.is_written = asyncio.Event()
        self.is_written.set()
        self._bytes_left = bytes_max
        self._wake = wake

    def add(self, event: bytes) -> None:
        if event.startswith(UNTOLD) or self._bytes_left < 0:
            return
        self._bytes_left -= len(event)
        if self._bytes_left < 0:
            sentence = (
                "this response has more bytes of events than are kept (gateway.jobs.stream_mib_max)"
                f" and goes on; {events.WAY_OUT}"
            )
            event = conversation.error_event(BatonError(Code.STREAM_GONE, sentence), 0)
        self.waiting.append(event)
        self.is_written.clear()
        self._wake()

    def written(self, count: int) -> None:
        """So many of what waited are in the ledger."""
        del self.waiting[:count]
        self.next += count
        if not self.waiting:
            self.is_written.set()


class EventWriter:
    """From `start` to `close`. `on_written` is called with the id of each response that has new
    events."""

    def __init__(
        self, ledger: Ledger, bytes_max: int, *, on_written: Callable[[str], None], log: Logger
    ) -> None:
        self._ledger = ledger
        self._bytes_max = bytes_max
        self._on_written = on_written
        self._runs: dict[Key, Run] = {}
        self._loop = Loop("response-events", self._write, log, pass_seconds=PASS_SECONDS)

    def start(self, tasks: Tasks) -> None:
        self._loop.start(tasks)

    async def close(self) -> None:
        """What waits is dropped: its run was broken off."""
        await self._loop.close()

    @contextmanager
    def run(self, held: Held) -> Iterator[Run]:
        run = self._runs[held.key] = Run(held, self._bytes_max, self._loop.wake)
        try:
            yield run
        finally:
            del self._runs[held.key]

    async def _write(self) -> None:
        """Raises BatonError if the ledger cannot be used."""
        groups = [(run, run.next, run.waiting[:]) for run in self._runs.values() if run.waiting]
        if not groups:
            return

        def append(db: sqlite3.Connection) -> None:
            for run, first, group in groups:
                events.append(db, run.held, first, group)

        await self._ledger.change(append)
        for run, _, group in groups:
            run.written(len(group))
            self._on_written(run.held.id)
