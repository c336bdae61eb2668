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
- A Submit says what its key does in the other one of its two cells (`OtherCell`), so that no limit
  of the key is had twice.

What an event costs does not depend on how many cells there are, save of the rare ones that concern
all of them. A tick is given only to the cores that it may be of use to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.messages import Fleet, OtherCell, Refused
from common.net.wire import pack_ids
from services.gateway.auth.caller import Caller
from services.gateway.cells import rendezvous
from services.gateway.cells.budget import SpillBudget
from services.gateway.cells.cell import Cell
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
from services.gateway.requests.live_index import LiveIndex
from services.gateway.requests.refusals import RETRY_SOON_MS
from services.gateway.requests.request import WAITING, LiveRequest
from services.gateway.requests.table import RequestTable

LOST_SECONDS = 0.5
"""Within it a standby has taken over, or a router that was started again has answered."""
LATE_TICK_SECONDS = 0.5
"""A gateway that got no tick for so long stood still itself."""
FIRST_TOKENS = 256
REFUSALS = frozenset({Code.QUEUE_FULL, Code.OVERLOADED, Code.NO_CAPACITY, Code.DRAINING})


class CellsCore:
    """`capacities`: of each cell, by name; empty: there are no cells. At most `max_streams`
    requests live at once, in all of them."""

    def __init__(
        self, limits: GatewayConfig, keys_max: int, capacities: Mapping[str, float]
    ) -> None:
        self._capacities = dict(capacities) or {"": 1.0}
        self.counters = Counters(keys_max)
        self._index = LiveIndex()
        self.cells: dict[str, Cell] = {}
        for name in self._capacities:
            table = RequestTable(limits.max_streams, name, self._index)
            self.cells[name] = Cell(name, Core(limits, self.counters, table))
        self._first = next(iter(self.cells.values()))
        self._streams_max = limits.max_streams
        self._token_wait = limits.token_wait_ms_max / 1000
        self._ticked_at = math.inf
        self._budget = SpillBudget(limits.cell_spill_share)
        #: The two cells of each slot (`rendezvous.py`) that was asked for.
        self._pairs: dict[int, tuple[Cell, Cell]] = {}
        #: What `fleet_of` found, by model, since a router last told something.
        self._fleets: dict[str, Fleet | None] = {}
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
        return len(self._index)

    def fleet_of(self, model: str) -> Fleet | None:
        """What a cell that can serve this model says of it, or else what any says."""
        if len(self.cells) == 1:
            return self._first.core.fleet_of(model)
        if model not in self._fleets:
            self._fleets[model] = self._found(model)
        return self._fleets[model]

    def _found(self, model: str) -> Fleet | None:
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
            assert {self._index.cell_of(name) for name in requests} <= {cell.name}
        assert len(seen) == len(self._index)
        self._index.check_invariants()
        assert len(self._pairs) <= rendezvous.SLOTS

    # ------------------------------------------------------------ events

    def handle(self, event: Event, now: float, cell: str = "") -> list[Action]:
        """The sole mutator. `cell`: of the router that the event comes from. `now`: seconds,
        monotonic."""
        if isinstance(event, Tick):
            before, self._ticked_at = self._ticked_at, now
            event = Tick(late=now - before > LATE_TICK_SECONDS)
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
            case Tick():
                return self._tick(event, now)
            case WorkerGone():
                self._of_worker.pop(event.worker, None)
        return [a for cell in self.cells.values() for a in self._of(cell, event, now)]

    def _of(self, cell: Cell, event: Event, now: float) -> list[Action]:
        return _named(cell, cell.core.handle(event, now))

    def _holder(self, request_id: str) -> Cell | None:
        name = self._index.cell_of(request_id)
        return None if name is None else self.cells[name]

    def _tick(self, event: Tick, now: float) -> list[Action]:
        actions: list[Action] = []
        for name in sorted(self._index.take_due(now, self._token_wait, late=event.late)):
            actions += self._of(self.cells[name], event, now)
        if len(self._index) and not self.draining:
            lost = [cell for cell in self.cells.values() if cell.lost_since]
            actions += [action for cell in lost for action in self._leave(cell, now)]
        return actions

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
        actions = self._of(cell, event, now)
        if not isinstance(event, FromRouter) or isinstance(event.message, Fleet):
            self._fleets.clear()
            cell.look(now)
        return actions

    # ------------------------------------------------------------ which cell

    def _opened(self, event: Opened, now: float) -> list[Action]:
        self._budget.opened()
        if self.active >= self._streams_max:
            sentence = f"this gateway already runs {self._streams_max} requests, its limit"
            event.answer.fail(BatonError(Code.QUEUE_FULL, sentence, retry_after_ms=RETRY_SOON_MS))
            return []
        model, caller = event.spec.model, event.caller
        home, second = self._two_cells(_key(caller.tenant or caller.key_id, event))
        at_home = home.serves(model)
        left = home.back_since.get(model) if at_home else home.lost_at(model, now)
        if at_home or not second.serves(model):
            home.home += 1
            known = self._known_of(second, caller, left if at_home else None, now)
            return self._of(home, event if known is None else replace(event, other_cell=known), now)
        second.spilled += 1
        known = self._known_of(home, caller, left, now)
        actions = self._of(second, replace(event, spilled=True, other_cell=known), now)
        sentence = f"cell {home.name} is lost; {second.name} serves the request"
        return [*actions, Note("request.spilled", sentence, event.spec.request_id)]

    def _known_of(
        self, other: Cell, caller: Caller, left: float | None, now: float, moving: int = 0
    ) -> OtherCell | None:
        """What the key does in `other`. `left`: since when its requests go elsewhere instead; None:
        they never went there alone. `moving`: of those that are live there, what leaves it now."""
        live = self._index.of_key(other.name, caller.key_id) - (moving if caller.key_id else 0)
        if left is None and not live:
            return None
        return OtherCell(left_ms=None if left is None else (now - left) * 1000, live=live)

    def _two_cells(self, key: bytes) -> tuple[Cell, Cell]:
        """The cell that the key belongs to, and the one that may serve it instead."""
        slot = rendezvous.slot_of(key)
        pair = self._pairs.get(slot)
        if pair is None:
            home, second, *_ = rendezvous.order_of_slot(slot, self._capacities)
            pair = self._pairs[slot] = self.cells[home], self.cells[second]
        return pair

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
        live = self._index.of_key(cell.name, request.caller.key_id)
        known = OtherCell(serves=True, live=max(0, live - 1))
        why = f"cell {cell.name} refuses it ({refused.code}: {refused.message})"
        return self._move(request, cell, other, why, known, now)

    def _leave(self, cell: Cell, now: float) -> list[Action]:
        """What waits in a cell that is lost goes on in the other one."""
        actions: list[Action] = []
        for request in cell.core.lifecycle.table:
            model, caller = request.spec.model, request.caller
            if request.state not in WAITING or request.spilled:
                continue
            if cell.seconds_lost(model, now) < LOST_SECONDS:
                continue
            other = self._other(cell, request)
            if other.serves(model):
                left = cell.lost_at(model, now)
                known = self._known_of(cell, caller, left, now, moving=1)
                why = f"cell {cell.name} is lost"
                actions += self._move(request, cell, other, why, known, now)
        return actions

    def _move(
        self,
        request: LiveRequest,
        source: Cell,
        target: Cell,
        why: str,
        known: OtherCell | None,
        now: float,
    ) -> list[Action]:
        """`known`: what the target's router must know of its key in the source. A source that
        refused it knows it no more."""
        target.spilled += 1
        request.spilled, request.other_cell = True, known
        refused = known is not None and known.serves
        actions = _named(source, source.core.lifecycle.give_up(request, now, known=not refused))
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
