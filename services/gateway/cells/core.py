"""What a gateway decides that serves several cells: which cell a request goes to.

Sans-IO. Each cell has a core of its own (`requests/core.py`), which knows its router, its table of
requests and nothing of other cells. This core gives each event to the core that it is about, names
the cell in what is sent, and moves requests between cores. Without cells there is one core, under
the empty name, and all events pass through.

A tenant belongs to the first cell of its rendezvous order, and its requests may go on in the second
one, but never in a third. Requests without a tenant are spread by session, or else by the beginning
of their prompt.

- A new request goes to the second cell if the first is lost (it has no router, or no worker that
  can serve the model), and the second is not.
- A first attempt that the cell refuses for lack of room is submitted to the second cell, once, as
  far as the budget allows (`budget.py`). That cell admits it as it admits its own.
- What a lost cell held, streams included, goes on in the second cell after `LOST_SECONDS`, as it
  does at another worker of the same cell: as the next attempt, after the tokens that the client
  has. A worker of the lost cell that lives gets an Abort, and its router a Cancel when it is back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.messages import Fleet, Refused
from common.net.wire import pack_ids
from services.gateway.cells import rendezvous
from services.gateway.cells.budget import SpillBudget
from services.gateway.requests.core import Core
from services.gateway.requests.counters import Counters
from services.gateway.requests.events import (
    Action,
    Closed,
    Event,
    FromRouter,
    Note,
    Opened,
    Report,
    RouterDown,
    RouterUp,
    Stepped,
    Tick,
    ToRouter,
    WorkerGone,
)
from services.gateway.requests.refusals import RETRY_SOON_MS
from services.gateway.requests.request import WAITING, LiveRequest

LOST_SECONDS = 0.5
"""Within it a standby has taken over, or a router that was started again has answered."""
FIRST_TOKENS = 256
ORDERS_MAX = 4_096
REFUSALS = frozenset({Code.QUEUE_FULL, Code.OVERLOADED, Code.NO_CAPACITY, Code.DRAINING})


@dataclass(slots=True)
class Cell:
    name: str
    core: Core
    #: Since when it has been lost, by model; a model that it can serve has none.
    lost_since: dict[str, float] = field(default_factory=dict)
    #: Requests that were opened here, and that came from another cell.
    home: int = 0
    spilled: int = 0

    def serves(self, model: str) -> bool:
        fleet = self.core.fleet_of(model)
        return self.core.router_up and fleet is not None and fleet.ready

    def seconds_lost(self, model: str, now: float) -> float:
        if self.serves(model):
            self.lost_since.pop(model, None)
            return 0.0
        return now - self.lost_since.setdefault(model, now)


class CellsCore:
    """`capacities`: of each cell, by name; empty: there are no cells. At most `max_streams`
    requests live at once, in all of them."""

    def __init__(
        self, limits: GatewayConfig, keys_max: int, capacities: Mapping[str, float]
    ) -> None:
        self._capacities = dict(capacities) or {"": 1.0}
        self.counters = Counters(keys_max)
        self.cells = {
            name: Cell(name, Core(limits, keys_max, self.counters)) for name in self._capacities
        }
        self._first = next(iter(self.cells.values()))
        self._streams_max = limits.max_streams
        self._budget = SpillBudget(limits.cell_spill_share)
        self._orders: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        #: The cell of each decode worker that has sent tokens, by identity.
        self._of_worker: dict[bytes, Cell] = {}

    # ------------------------------------------------------------ what others read

    @property
    def router_up(self) -> bool:
        return any(cell.core.router_up for cell in self.cells.values())

    @property
    def draining(self) -> bool:
        return self._first.core.draining

    @property
    def active(self) -> int:
        """The number of live requests."""
        return sum(cell.core.active for cell in self.cells.values())

    def fleet_of(self, model: str) -> Fleet | None:
        """What a cell that can serve this model says of it, or else what any says."""
        known = [cell.core.fleet_of(model) for cell in self.cells.values()]
        fleets = [fleet for fleet in known if fleet is not None]
        return next((fleet for fleet in fleets if fleet.ready), fleets[0] if fleets else None)

    def live_of(self, model: str) -> tuple[int, int]:
        """The live requests for this model, and how many of them have no worker yet."""
        counts = [cell.core.live_of(model) for cell in self.cells.values()]
        return sum(live for live, _ in counts), sum(waiting for _, waiting in counts)

    def busy_workers(self) -> list[bytes]:
        """The workers to which live requests are assigned."""
        return [worker for cell in self.cells.values() for worker in cell.core.busy_workers()]

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        seen: set[str] = set()
        for cell in self.cells.values():
            cell.core.check_invariants()
            requests = cell.core.lifecycle.table.requests
            assert seen.isdisjoint(requests)
            seen |= requests.keys()
        assert len(self._orders) <= ORDERS_MAX

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now: float, cell: str = "") -> list[Action]:
        """The sole mutator. `cell`: of the router that the event comes from. `now`: seconds,
        monotonic."""
        if len(self.cells) == 1:
            return self._first.core.handle(event, now)
        match event:
            case Stepped():
                return self._of(self._cell_of_step(event), event, now)
            case Opened():
                return self._opened(event, now)
            case FromRouter() | RouterUp() | RouterDown():
                return self._from_router(self.cells[cell], event, now)
            case Closed():
                return self._of(self._holder(event.request_id) or self._first, event, now)
        if isinstance(event, WorkerGone):
            self._of_worker.pop(event.worker, None)
        actions = self._of_all(event, now)
        if isinstance(event, Tick) and not self.draining:
            actions += self._leave_lost_cells(now)
        return actions

    def _of(self, cell: Cell, event: Event, now: float) -> list[Action]:
        return _named(cell, cell.core.handle(event, now))

    def _of_all(self, event: Event, now: float) -> list[Action]:
        return [a for cell in self.cells.values() for a in self._of(cell, event, now)]

    def _holder(self, request_id: str) -> Cell | None:
        for cell in self.cells.values():
            if request_id in cell.core.lifecycle.table.requests:
                return cell
        return None

    def _cell_of_step(self, event: Stepped) -> Cell:
        cell = self._of_worker.get(event.worker)
        if cell is None:
            ids = (delta.request_id for delta in event.deltas)
            cell = next(filter(None, map(self._holder, ids)), None)
            if cell is None:
                return self._first
            self._of_worker[event.worker] = cell
        return cell

    def _from_router(self, cell: Cell, event: Event, now: float) -> list[Action]:
        if isinstance(event, FromRouter) and isinstance(event.message, Refused):
            moved = self._spill(cell, event.message, now)
            if moved is not None:
                return moved
        return self._of(cell, event, now)

    # ------------------------------------------------------------ which cell

    def _opened(self, event: Opened, now: float) -> list[Action]:
        self._budget.opened()
        if self.active >= self._streams_max:
            sentence = f"this gateway already runs {self._streams_max} requests, its limit"
            event.answer.fail(BatonError(Code.QUEUE_FULL, sentence, retry_after_ms=RETRY_SOON_MS))
            return []
        model = event.spec.model
        home, second = self._two_cells(_key(event.caller.tenant or event.caller.key_id, event))
        if home.serves(model) or not second.serves(model):
            home.home += 1
            return self._of(home, event, now)
        second.spilled += 1
        actions = self._of(second, replace(event, spilled=True), now)
        sentence = f"cell {home.name} is lost; {second.name} serves the request"
        return [*actions, Note("request.spilled", sentence, event.spec.request_id)]

    def _two_cells(self, key: bytes) -> tuple[Cell, Cell]:
        """The cell that the key belongs to, and the one that may serve it instead."""
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = rendezvous.order(key, self._capacities)[:2]
            if len(self._orders) > ORDERS_MAX:
                self._orders.popitem(last=False)
        return self.cells[order[0]], self.cells[order[1]]

    def _other(self, cell: Cell, request: LiveRequest) -> Cell:
        home, second = self._two_cells(request_key(request))
        return second if cell is home else home

    # ------------------------------------------------------------ moving

    def _spill(self, cell: Cell, refused: Refused, now: float) -> list[Action] | None:
        """Gives a refused request to the other cell. None: the refusal stands."""
        request = cell.core.lifecycle.table.current(refused.request_id, refused.attempt)
        if request is None or request.state not in WAITING or request.spilled:
            return None
        if request.attempt > 1 or refused.code not in REFUSALS:
            return None
        other = self._other(cell, request)
        if not other.serves(request.spec.model) or not self._budget.take():
            return None
        why = f"cell {cell.name} refuses it ({refused.code}: {refused.message})"
        return self._move(request, cell, other, why, now, known=False)

    def _leave_lost_cells(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for cell in self.cells.values():
            lost = {m: cell.seconds_lost(m, now) for m in cell.core.lifecycle.table.models()}
            if not any(seconds >= LOST_SECONDS for seconds in lost.values()):
                continue
            for request in cell.core.lifecycle.table:
                model = request.spec.model
                leaves = request.state in WAITING and not request.spilled
                if not leaves or lost[model] < LOST_SECONDS:
                    continue
                other = self._other(cell, request)
                if other.serves(model):
                    why = f"cell {cell.name} is lost"
                    actions += self._move(request, cell, other, why, now, known=True)
        return actions

    def _move(
        self, request: LiveRequest, source: Cell, target: Cell, why: str, now: float, *, known: bool
    ) -> list[Action]:
        """`known`: whether the router of `source` may still know the request."""
        target.spilled += 1
        request.spilled = True
        actions = _named(source, source.core.lifecycle.give_up(request, now, known=known))
        actions += _named(target, target.core.lifecycle.take(request, now))
        sentence = f"{why}; cell {target.name} serves it"
        return [*actions, Note("request.spilled", sentence, request.spec.request_id)]


def request_key(request: LiveRequest) -> bytes:
    caller = request.caller
    return _key(caller.tenant or caller.key_id, request)


def _key(tenant: str, request: LiveRequest | Opened) -> bytes:
    """What decides the cell."""
    spec = request.spec
    if tenant:
        return b"tenant " + tenant.encode()
    if spec.session:
        return b"session " + spec.session.encode()
    return b"prompt " + pack_ids(spec.prompt_ids[:FIRST_TOKENS])


def _named(cell: Cell, actions: Iterable[Action]) -> list[Action]:
    named: list[Action] = []
    for action in actions:
        match action:
            case ToRouter():
                named.append(ToRouter(action.message, action.body, cell.name))
            case Report():
                named.append(Report(action.summary, cell.name))
            case _:
                named.append(action)
    return named
