"""LoRA adapters of one model: what operators ordered since this router started, and who has done
it.

Workers have adapters; the router only remembers orders, so that a worker that joins later gets
them, too. A restarted router knows what workers have from their Beats, and no orders.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from common.messages import ADAPTERS_MAX, AdapterStatus
from common.model.adapters import name_of_adapter

LOAD_SECONDS_PRIOR = 0.2
"""What loading an adapter takes, until a worker has measured it."""
ANSWER_SECONDS = 60.0
ERRORS_MAX = 3
NAMES_MAX = 5

#: By id, the seconds that a worker takes to load it; 0 if it is in memory.
HeldAdapters = Mapping[str, float]


@dataclass(slots=True)
class AdapterOrder:
    """One adapter is to be loaded, or to be let go."""

    name: str
    #: Folder of its files; empty: let it go.
    path: str
    #: When it was given.
    since: float
    #: Identities of the workers that have not answered.
    waiting: dict[str, None]
    #: Gateway and `ask_id` of who gets the answer; None: nobody waits for it.
    asker: tuple[str, int] | None = None
    #: By the worker's name, why it was not done.
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """What went wrong, once for all workers that say the same; empty if nothing did."""
        by_error: dict[str, list[str]] = {}
        for worker, error in sorted(self.errors.items()):
            by_error.setdefault(error, []).append(worker)
        told = list(by_error.items())
        sentences = [f"{_names(workers)}: {error}" for error, workers in told[:ERRORS_MAX]]
        more = sum(len(workers) for _, workers in told[ERRORS_MAX:])
        return "; ".join(sentences) + (f"; and {more} more workers" if more else "")


def _names(workers: list[str]) -> str:
    more = len(workers) - NAMES_MAX
    return ", ".join(workers[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


class AdapterOrders:
    """The latest order for each name, as many as a worker may have adapters: the oldest is
    forgotten."""

    def __init__(self) -> None:
        self.latest: OrderedDict[str, AdapterOrder] = OrderedDict()

    def give(self, order: AdapterOrder) -> None:
        self.latest[order.name] = order
        self.latest.move_to_end(order.name)
        if len(self.latest) > ADAPTERS_MAX:
            self.latest.popitem(last=False)

    def lacking(self, held: HeldAdapters) -> list[AdapterOrder]:
        """The orders with which what a worker has does not agree."""
        names = {name_of_adapter(adapter) for adapter in held}
        return [
            order for order in self.latest.values() if (order.name in names) != bool(order.path)
        ]

    def withdraw(self, order: AdapterOrder) -> None:
        """What no worker could do is not asked of the next one."""
        if self.latest.get(order.name) is order:
            del self.latest[order.name]

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self.latest) <= ADAPTERS_MAX
        assert all(name == order.name for name, order in self.latest.items())


def held_adapters(statuses: Iterable[AdapterStatus]) -> dict[str, float]:
    """Those that can be served."""
    known = [status for status in statuses if not status.error]
    measured = [status.load_ms / 1000 for status in known if status.load_ms]
    usual = sum(measured) / len(measured) if measured else LOAD_SECONDS_PRIOR
    return {
        status.id: 0.0 if status.resident else status.load_ms / 1000 or usual for status in known
    }
