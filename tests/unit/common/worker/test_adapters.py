"""A worker's adapters: those of the file first, then orders, and a bad one harms no other."""

from __future__ import annotations

import asyncio

import structlog

from common.config import AdapterConfig
from common.messages import AdapterDone, Load, OrderAdapter
from common.worker.adapters import AdapterOrders
from tests.rigs.engines import PlayedEngine


def test_orders_are_carried_out_one_after_the_other_and_answered() -> None:
    async def play() -> None:
        engine, done = PlayedEngine(Load()), asyncio.Queue[AdapterDone]()
        orders = AdapterOrders(
            {"sql": AdapterConfig(path="/sql")}, engine, done.put_nowait, structlog.get_logger()
        )
        orders.order(OrderAdapter(name="law", path="/law"))
        orders.order(OrderAdapter(name="sql"))
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            running = group.create_task(orders.run())
            assert [(await done.get()).name for _ in range(3)] == ["sql", "law", "sql"]
            engine.refuse = "it is damaged"
            orders.order(OrderAdapter(name="bad", path="/bad"))
            assert await done.get() == AdapterDone(name="bad", path="/bad", error="it is damaged")
            engine.refuse = ""
            orders.order(OrderAdapter(name="good", path="/good"))
            assert not (await done.get()).error
            running.cancel()
        asked = [engine.asked.get_nowait() for _ in range(engine.asked.qsize())]
        told = ["load sql from /sql", "load law from /law", "unload sql", "load good from /good"]
        assert asked == told

    asyncio.run(play())


def test_more_orders_than_may_wait_are_answered_at_once() -> None:
    async def play() -> None:
        done: list[AdapterDone] = []
        orders = AdapterOrders({}, PlayedEngine(Load()), done.append, structlog.get_logger())
        for _ in range(257):
            orders.order(OrderAdapter(name="a", path="/a"))
        (answer,) = done
        assert "wait already" in answer.error

    asyncio.run(play())
