"""LoRA adapters of a worker: those of the fleet file at its start, and then what routers order.

One is loaded at a time, beside what the engine computes. One that cannot be loaded is logged and
reported, and the worker serves without it: a damaged file must not take a model away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from common.config import AdapterConfig
from common.engine.port import Engine
from common.errors import BatonError, Code
from common.messages import ADAPTERS_MAX, AdapterDone, OrderAdapter
from common.telemetry.log import Logger


class AdapterOrders:
    """`report` tells all routers what the worker has now, and then the answer to an order."""

    def __init__(
        self,
        configured: Mapping[str, AdapterConfig],
        engine: Engine,
        report: Callable[[AdapterDone], None],
        log: Logger,
    ) -> None:
        self._engine = engine
        self._report = report
        self._log = log
        self._orders: asyncio.Queue[OrderAdapter] = asyncio.Queue(2 * ADAPTERS_MAX)
        for name, adapter in configured.items():
            self._orders.put_nowait(OrderAdapter(name=name, path=adapter.path))

    def order(self, message: OrderAdapter) -> None:
        try:
            self._orders.put_nowait(message)
        except asyncio.QueueFull:
            error = f"{self._orders.maxsize} orders for adapters wait already"
            self._report(AdapterDone(name=message.name, path=message.path, error=error))

    async def run(self) -> None:
        """Never returns. Raises BatonError(ENGINE_FAILED)."""
        while True:
            order = await self._orders.get()
            done = AdapterDone(name=order.name, path=order.path)
            try:
                await self._carry_out(order)
            except BatonError as error:
                if error.code is Code.ENGINE_FAILED:
                    raise
                done = AdapterDone(name=order.name, path=order.path, error=error.message)
                self._log.warning("adapter.refused", adapter=order.name, sentence=error.message)
            self._report(done)

    async def _carry_out(self, order: OrderAdapter) -> None:
        if not order.path:
            await self._engine.unload_adapter(order.name)
            self._log.info("adapter.unloaded", adapter=order.name)
            return
        await self._engine.load_adapter(order.name, order.path)
        self._log.info("adapter.loaded", adapter=order.name, path=order.path)
