"""A gateway keeps the order for workers of a router, for it and its successor."""

from __future__ import annotations

from typing import Any

from common.messages import SCALE_ORDERS_MAX, KeepOrder, KeptOrders, Role, ScaleOrder
from services.gateway.requests.events import FromRouter, RouterDown, RouterUp
from services.gateway.requests.kept_orders import OVER_SECONDS, OrderKeeper
from tests.unit.services.gateway.gate import Gate


def order(model: str = "m", **more: Any) -> ScaleOrder:
    about: dict[str, Any] = {
        "id": "r0-1",
        "role": Role.DECODE,
        "out": True,
        "count": 1,
        "why": "",
        "age_ms": 0.0,
        "remaining_ms": 1_000.0,
        "asked": True,
    }
    return ScaleOrder(model=model, **about | more)


def kept(message: KeptOrders) -> list[str]:
    return [one.id for one in message.orders]


def test_one_order_a_model_until_it_is_told_otherwise() -> None:
    keeper = OrderKeeper()
    assert kept(keeper.keep(KeepOrder(model="m", order=order()), 10.0)) == ["r0-1"]
    assert kept(keeper.keep(KeepOrder(model="n", order=order("n", id="n-1")), 10.0)) == [
        "r0-1",
        "n-1",
    ]
    assert kept(keeper.keep(KeepOrder(model="m", order=order(id="r0-2")), 10.0)) == ["r0-2", "n-1"]
    assert kept(keeper.keep(KeepOrder(model="m"), 10.0)) == ["n-1"]
    assert kept(keeper.keep(KeepOrder(model="m"), 10.0)) == ["n-1"]


def test_its_time_runs_and_it_is_kept_for_an_hour_more() -> None:
    keeper = OrderKeeper()
    keeper.keep(KeepOrder(model="m", order=order()), 10.0)
    (left,) = keeper.kept(10.4).orders
    assert (round(left.age_ms), round(left.remaining_ms)) == (400, 600)
    assert [one.remaining_ms for one in keeper.kept(12.0).orders] == [0.0]
    assert len(keeper.kept(10.9 + OVER_SECONDS).orders) == 1
    assert keeper.kept(11.0 + OVER_SECONDS).orders == ()


def test_more_than_may_be_told_are_not_kept() -> None:
    keeper = OrderKeeper()
    for number in range(SCALE_ORDERS_MAX + 1):
        keeper.keep(KeepOrder(model=str(number), order=order(str(number))), 10.0)
    assert len(keeper.kept(10.0).orders) == SCALE_ORDERS_MAX


def test_the_router_that_is_used_is_told_at_once_and_so_is_its_successor() -> None:
    gate = Gate()
    assert gate.kept == [KeptOrders()]
    gate.do(FromRouter(KeepOrder(model="m", order=order())))
    gate.now += 0.5
    gate.do(RouterDown())
    gate.do(RouterUp())
    assert [kept(message) for message in gate.kept] == [[], ["r0-1"], ["r0-1"]]
