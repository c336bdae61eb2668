"""The orders for workers that routers gave, kept for the router that gave them or its successor.

A router's state is soft, and a second order for the same need would start workers twice. The
gateway decides nothing about an order: it keeps one for each model until it is told otherwise. One
whose time is over is kept for another hour, because a worker may have been drained for it that only
the router's successor can let work again.
"""

from __future__ import annotations

from msgspec.structs import replace

from common.messages import SCALE_ORDERS_MAX, KeepOrder, KeptOrders, ScaleOrder

OVER_SECONDS = 3_600.0


class OrderKeeper:
    """At most `SCALE_ORDERS_MAX`; further ones are not kept, and so never confirmed."""

    def __init__(self) -> None:
        self._orders: dict[str, tuple[ScaleOrder, float]] = {}

    def keep(self, message: KeepOrder, now: float) -> KeptOrders:
        """Returns the answer. `now`: seconds, monotonic."""
        order = message.order
        if order is None:
            self._orders.pop(message.model, None)
        elif message.model in self._orders or len(self._orders) < SCALE_ORDERS_MAX:
            self._orders[message.model] = (order, now)
        return self.kept(now)

    def kept(self, now: float) -> KeptOrders:
        """With the time that they have left."""
        for model, (order, since) in list(self._orders.items()):
            if now - since >= order.remaining_ms / 1000 + OVER_SECONDS:
                del self._orders[model]
        return KeptOrders(
            orders=tuple(
                replace(
                    order,
                    age_ms=order.age_ms + (now - since) * 1000,
                    remaining_ms=max(0.0, order.remaining_ms - (now - since) * 1000),
                )
                for order, since in self._orders.values()
            )
        )
