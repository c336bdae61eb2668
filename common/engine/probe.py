"""A question to the engine that only a live one answers.

Theory of operation: an engine that makes steps shows that it lives. One that makes none because it
has nothing to do, or because what it had was taken elsewhere, shows nothing, and neither does one
that hangs. So it is asked something trivial: every `PROBE_SECONDS` in which it made no step, and at
once when its last requests are taken away. It answers between two steps. There is one question at a
time; how long it has gone unanswered is its silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

PROBE_SECONDS = 1.0


class Probe:
    """`ask` returns when the engine has answered; `clock`: seconds, monotonic."""

    def __init__(self, ask: Callable[[], Awaitable[object]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_at: float | None = None
        self._heard_at = clock()
        self._owed_since: float | None = None
        self._soon = asyncio.Event()

    @property
    def silent_seconds(self) -> float:
        """For how long the engine has owed an answer; 0 when it owes none."""
        return 0.0 if self._asked_at is None else self._clock() - self._asked_at

    @property
    def stuck_seconds(self) -> float:
        """As `silent_seconds`, but from its last step on when its requests were taken since."""
        owed = 0.0 if self._owed_since is None else self._clock() - self._owed_since
        return max(owed, self.silent_seconds)

    def heard(self) -> None:
        """The engine has made a step."""
        self._heard_at = self._clock()
        self._owed_since = None

    def left_alone(self, since: float) -> None:
        """All that it worked on since then is taken from it; it is asked at once how it does."""
        self._owed_since = since
        self._soon.set()

    async def run(self) -> None:
        """Never returns. Raises what `ask` raises."""
        while True:
            await self._quiet()
            self._soon.clear()
            self._asked_at = self._clock()
            await self._ask()
            self._asked_at = None
            self.heard()

    async def _quiet(self) -> None:
        """Until a question is due."""
        while not self._soon.is_set():
            left = self._heard_at + PROBE_SECONDS - self._clock()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._soon.wait()
