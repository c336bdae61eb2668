"""What the engine is told: requests, aborts, and when to sleep and wake.

Theory of operation: these calls must be awaited. They go through one queue and one task, so that an
abort never overtakes its add, and no request reaches an engine that sleeps. The core's table bounds
the queue. A warm worker falls asleep before it says Hello, and then sleeps and wakes as the router
says (`Wake`). One that sleeps prefetches nothing. A request that comes to one that sleeps wakes it,
whatever the router ordered last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from common.clock import Clock
from common.engine.port import Engine, EngineRequest
from common.errors import BatonError, Code, WireError
from common.messages import OrderStore, Prefetch, Role, Wake, WarmState
from common.net.wire import decode_body, unpack_ids
from common.worker.actions import (
    AbortInEngine,
    AddToEngine,
    CopyInEngine,
    EngineRefused,
    HandOverKept,
    LeaveEngine,
    WorkerCore,
)

Command: TypeAlias = (
    AddToEngine
    | AbortInEngine
    | LeaveEngine
    | HandOverKept
    | CopyInEngine
    | Wake
    | OrderStore
    | Prefetch
)


class EngineCommands:
    """`warm`: whether this worker may sleep. `refused` takes what the engine refuses, and
    `changed` is called when it fell asleep or woke."""

    def __init__(
        self,
        engine: Engine,
        core: WorkerCore,
        clock: Clock,
        *,
        warm: bool,
        refused: Callable[[EngineRefused], None],
        changed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._core = core
        self._clock = clock
        self._warm = warm
        self._refused = refused
        self._changed = changed
        self._queue: asyncio.Queue[Command] = asyncio.Queue()
        self.asleep = False
        self._wake_ms = 0.0

    @property
    def warm_state(self) -> WarmState | None:
        """None of a worker that never sleeps."""
        return WarmState(asleep=self.asleep, wake_ms=self._wake_ms) if self._warm else None

    def put(self, command: Command) -> None:
        self._queue.put_nowait(command)

    async def fall_asleep(self) -> None:
        """Before the worker says Hello. One that never sleeps stays awake."""
        if self._warm:
            self.asleep = await self._engine.sleep()

    async def run(self) -> None:
        """Never returns. Raises BatonError(ENGINE_FAILED) once the engine is dead."""
        while True:
            match await self._queue.get():
                case AddToEngine() as command:
                    await self._add(command)
                case AbortInEngine() as command:
                    await self._engine.abort(command.request_id, command.attempt)
                case LeaveEngine() | HandOverKept() | CopyInEngine() | OrderStore() as command:
                    self._tell(command)
                case Prefetch() as message if not self.asleep:
                    self._prefetch(message)
                case Wake(on=True):
                    await self._wake()
                case Wake(on=False) if self._warm and not self.asleep and not self._core.active:
                    self.asleep = await self._engine.sleep()
                    self._changed()

    def _tell(self, command: LeaveEngine | HandOverKept | CopyInEngine | OrderStore) -> None:
        """What the engine does without anybody who waits for it."""
        match command:
            case LeaveEngine():
                self._engine.leave(command.request_id, command.attempt)
            case HandOverKept():
                self._engine.hand_over(command.ticket, command.kept_attempt)
            case CopyInEngine():
                self._engine.copy_ahead(command.order)
            case OrderStore():
                self._engine.order_store(command)

    async def _add(self, command: AddToEngine) -> None:
        await self._wake()
        request = command.request
        try:
            await self._engine.add(request)
        except BatonError as error:
            if error.code is Code.ENGINE_FAILED:
                raise
            key = (request.request_id, request.attempt)
            self._refused(EngineRefused(*key, error.code, error.message))

    def _prefetch(self, message: Prefetch) -> None:
        """What cannot be decoded is not prefetched: the request itself will be refused."""
        try:
            body = decode_body(message.body)
        except WireError:
            return
        self._engine.prefetch(
            EngineRequest(
                request_id=message.request_id,
                attempt=message.attempt,
                role=Role.PREFILL,
                prompt_ids=unpack_ids(body.prompt_ids),
                sampling=body.sampling,
                source=message.source,
                cache_salt=body.cache_salt,
                images=body.images,
                adapter=body.adapter,
            )
        )

    async def _wake(self) -> None:
        if self.asleep:
            began = self._clock.monotonic()
            await self._engine.wake()
            self.asleep, self._wake_ms = False, (self._clock.monotonic() - began) * 1000
            self._changed()
