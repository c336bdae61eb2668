"""Liveness probes of an engine that makes no steps.

Theory of operation: an engine that makes steps is alive. An engine without work, or whose work was
taken away, makes none, and neither does one that hangs. Such an engine is asked something trivial
after every `PROBE_SECONDS` without a step, and at once when its last requests are taken away. It
answers between two steps. There is one question at a time; the time for which it is unanswered is
the engine's silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

PROBE_SECONDS = 1.0


class Probe:
    """`ask` returns when the engine has answered. `clock` returns seconds, monotonic."""

    def __init__(self, ask: Callable[[], Awaitable[object]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_at: float | None = None
        self._alive_at = clock()
        self._owed_since: float | None = None
        self._ask_now = asyncio.Event()

    @property
    def silent_seconds(self) -> float:
        """For how long the current question is unanswered; 0 if there is none."""
        return 0.0 if self._asked_at is None else self._clock() - self._asked_at

    @property
    def stuck_seconds(self) -> float:
        """As `silent_seconds`, but counted from the last step if the engine's requests were taken
        away since."""
        owed = 0.0 if self._owed_since is None else self._clock() - self._owed_since
        return max(owed, self.silent_seconds)

    def on_step(self) -> None:
        """The engine made a step."""
        self._alive_at = self._clock()
        self._owed_since = None

    def on_requests_taken(self, since: float) -> None:
        """All requests were taken from the engine, whose last step was at `since`. It is asked at
        once."""
        self._owed_since = since
        self.ask_now()

    def ask_now(self) -> None:
        """An engine without requests looks for other work of its own when it is asked."""
        self._ask_now.set()

    async def run(self) -> None:
        """Asks whenever a question is due. Never returns; raises what `ask` raises."""
        while True:
            await self._wait_until_due()
            self._ask_now.clear()
            self._asked_at = self._clock()
            await self._ask()
            self._asked_at = None
            self.on_step()

    async def _wait_until_due(self) -> None:
        """Returns when a question is due."""
        while not self._ask_now.is_set():
            left = self._alive_at + PROBE_SECONDS - self._clock()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._ask_now.wait()
