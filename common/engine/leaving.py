"""Streams that leave a vLLM engine: they end between two of its steps, and the tokens of the step
that runs are still delivered.

Theory of operation: vLLM aborts a request in the middle of a step, whose token is then lost. So the
engine is asked to abort it by a call like any other, which it answers between two steps, after all
outputs before. All that leave meanwhile are the next call. With asynchronous scheduling the step
after that runs already; its token is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

METHOD = "abort_requests"


class Left(tuple[str, ...]):
    """The engine keys of streams that have left, in the queue of outputs behind the last of
    theirs. Some may have ended before."""

    __slots__ = ()


class Leaving:
    """`ask` calls a method of the engine and returns when it has answered. `put` puts something
    behind the outputs that have come."""

    def __init__(
        self,
        ask: Callable[[str, Sequence[str]], Awaitable[object]],
        put: Callable[[Left], None],
    ) -> None:
        self._ask = ask
        self._put = put
        self._waiting: list[str] = []
        self._some = asyncio.Event()

    def add(self, key: str) -> None:
        self._waiting.append(key)
        self._some.set()

    async def run(self) -> None:
        """Never returns; raises what `ask` raises."""
        while True:
            await self._some.wait()
            self._some.clear()
            keys, self._waiting = self._waiting, []
            await self._ask(METHOD, keys)
            self._put(Left(keys))
