"""What the core has the engine do, in order: one queue and one task, so that an abort never
overtakes its add. The core's table bounds the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.engine.port import Engine
from common.errors import BatonError, Code
from common.worker.actions import AbortInEngine, AddToEngine, EngineRefused, HandOverKept
from common.worker.canary import Canary


class EngineCommands:
    """`handle` takes an event into the core."""

    def __init__(self, engine: Engine, handle: Callable[[EngineRefused], None]) -> None:
        self._engine = engine
        self._handle = handle
        self._queue: asyncio.Queue[AddToEngine | AbortInEngine | HandOverKept] = asyncio.Queue()

    def put(self, command: AddToEngine | AbortInEngine | HandOverKept) -> None:
        self._queue.put_nowait(command)

    async def run(self, canary: Canary) -> None:
        """Never returns. Raises BatonError(ENGINE_FAILED)."""
        while True:
            command = await self._queue.get()
            if isinstance(command, AbortInEngine):
                key = (command.request_id, command.attempt)
                await self._engine.abort(*key, keep_tokens=command.keep_tokens)
            elif isinstance(command, HandOverKept):
                self._engine.hand_over(command.ticket, command.kept_attempt)
            else:
                await self._add(command, canary)

    async def _add(self, command: AddToEngine, canary: Canary) -> None:
        request = command.request
        try:
            await self._engine.add(request)
        except BatonError as error:
            if error.code is Code.ENGINE_FAILED:
                raise
            if not canary.on_refused(request.request_id, error.message):
                key = (request.request_id, request.attempt)
                self._handle(EngineRefused(*key, error.code, error.message))
