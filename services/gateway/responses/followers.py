"""Clients that follow the events of a response in the background, in whichever process it runs.

Theory of operation: what a follower sees is what the ledger has. He reads it when this process has
written something, and otherwise every `POLL_SECONDS`, for what other processes write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from weakref import WeakValueDictionary

from common.clock import Clock
from common.errors import BatonError
from services.gateway.jobs.ledger import Ledger
from services.gateway.responses import conversation, events
from services.gateway.responses.events import Page

POLL_SECONDS = 0.5


class Followers:
    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        #: By id of the response; each is there while somebody waits for it.
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def wake(self, response_id: str) -> None:
        """The ledger has something new of it."""
        news = self._news.pop(response_id, None)
        if news is not None:
            news.set()

    async def follow(self, response_id: str, owner: str, after: int) -> AsyncIterator[bytes]:
        """The events after that number to the end, in pieces. The first piece comes at once and may
        be empty. Raises BatonError before it as `events.page`, and whenever the ledger cannot be
        read; that there is nothing more to go on to is the last event."""
        last, told = after, False
        while True:
            # Before the ledger is read, so that nothing is missed between.
            news = self._news.setdefault(response_id, asyncio.Event())
            try:
                page = await self._page(response_id, owner, last)
            except BatonError as error:
                if not told or error.http.status >= 500:
                    raise
                yield conversation.error_event(error, last + 1)
                return
            last = page.last
            if page.events or not told:
                told = True
                yield b"".join(page.events)
            if page.is_over:
                return
            if page.is_whole:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await news.wait()

    async def _page(self, response_id: str, owner: str, after: int) -> Page:
        now = self._clock.unix_ms()
        return await self._ledger.read(lambda db: events.page(db, response_id, owner, now, after))
