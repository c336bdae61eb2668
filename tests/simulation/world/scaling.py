"""Hooks that start and stop workers, and faults at chosen moments of their orders.

An order passes phases; each seed draws some pairs of a phase and a fault, and strikes when an order
reaches the phase, before the next message is delivered, as `switches.py` does. What a hook does is
drawn for each call: it obeys, hangs, lies, fails, answers twice, or comes too late. A third of the
seeds want ever more workers, a third ever fewer, and a third go down to none and back.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, cast

from common.config import ScaleConfig
from common.messages import Role, ScaleOrder
from services.router.events import CallHook, HookEnded
from services.router.tables import Tables
from tests.simulation.world.faults import Faults
from tests.simulation.world.fleet import Fleet
from tests.simulation.world.gateway import GatewayProcess
from tests.simulation.world.process import Process
from tests.simulation.world.scale_watch import SETTLE_SECONDS
from tests.simulation.world.workers import DecodeProcess, PrefillProcess, WorkerProcess

if TYPE_CHECKING:
    from tests.simulation.world.router import RouterProcess

DEADLINE_SECONDS = 2.5
STRIKES = 4
TAKEN_OVER_SHARE = 0.6
"""Of the seeds, those in which a router dies when it has called a hook."""
BASE = {
    "mode": "on",
    "out": "start",
    "in_": "stop",
    "deadline_ms": DEADLINE_SECONDS * 1000,
    "cooldown_ms": 100.0,
    "backoff_ms": 150.0,
    "workers_max": 5,
    "idle_ms": 60_000.0,
}
MORE = ScaleConfig(**BASE | {"busy_max": 1e-6, "busy_min": 0.0})  # type: ignore[arg-type]
FEWER = ScaleConfig(**BASE | {"busy_max": 1.0, "busy_min": 0.999})  # type: ignore[arg-type]
ZERO = ScaleConfig(**BASE | {"idle_ms": 100.0})  # type: ignore[arg-type]


class ScalePhase(enum.StrEnum):
    """Of an order for workers."""

    #: A router gave it, and no gateway has heard of it.
    ORDERED = "ordered"
    #: A gateway keeps it, and the router has not heard that.
    KEPT = "kept"
    #: The worker that is to stop empties.
    DRAINING = "draining"
    #: The hook was called, and has done nothing.
    ASKED = "asked"
    #: The hook's worker starts, or its worker leaves.
    OBEYED = "obeyed"


FAULTS = (
    "kill router",
    "hang router",
    "kill gateway",
    "cut gateways",
    "kill worker",
    "kill another",
    "resume",
)
HABITS = ("obey", "obey", "obey", "hang", "lie", "fail", "twice", "late", "unheard")


class Call:
    """One call of a hook. `habit`: what the hook does."""

    def __init__(self, order: ScaleOrder, at: float, habit: str) -> None:
        self.order = order
        self.at = at
        self.habit = habit
        self.deadline = at + order.remaining_ms / 1000


class Hooks:
    """What lies behind the hooks of all routers, and what must hold of their calls."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet = fleet
        self._clock = fleet.clock
        self._dice = random.Random(f"hooks {seed}")
        self.calls: list[Call] = []
        self.habits: Counter[str] = Counter()
        #: Names of the workers that hooks started, with the role of each.
        self.started: dict[str, Role] = {}
        #: The latest order that is to stop a worker, by its name, and the gateways that kept it.
        self._keepers: dict[str, tuple[str, set[str]]] = {}
        self._serial = 0

    def kept(self, gateway: str, order: ScaleOrder) -> None:
        """A gateway (identity) keeps the order."""
        latest, keepers = self._keepers.get(order.worker, ("", set()))
        if latest != order.id:
            keepers = set()
        self._keepers[order.worker] = (order.id, keepers | {gateway})

    def call(self, router: RouterProcess, action: CallHook) -> None:
        order, now = action.order, self._clock.now
        tables = router.core.shared.models[order.model]
        self._judge(router, tables, order)
        call = Call(order, now, self._dice.choice(HABITS))
        self.calls.append(call)
        self.habits[call.habit] += 1
        self._clock.note(f"hook {call.habit}: {order.id} {order.role} {order.worker}")
        self._fleet.scale_reached(ScalePhase.ASKED, router.identity, order.worker)
        delay = self._dice.uniform(0.02, 0.4)
        if call.habit == "late":
            delay += DEADLINE_SECONDS
        if call.habit in ("obey", "twice", "late"):
            for _ in range(order.count * (2 if order.out and call.habit == "twice" else 1)):
                self._clock.after(delay, partial(self._obey, order))
        if call.habit == "hang":
            return
        called, times = call.habit != "unheard", 2 if call.habit == "twice" else 1
        said = HookEnded(order.model, order.id, called, call.habit)
        for _ in range(times):
            ends = self._dice.uniform(0.0, 0.3)
            self._clock.after(ends, partial(router.when_awake, partial(router.feed, said)))

    def _obey(self, order: ScaleOrder) -> None:
        if order.out:
            self._serial += 1
            number = self._fleet.names.index(order.model)
            name = f"x{self._serial}{chr(ord('a') + number) if number else ''}"
            kind = PrefillProcess if order.role is Role.PREFILL else DecodeProcess
            self.started[name] = order.role
            self._fleet.add(kind(self._fleet, name))
            self._fleet.scale_reached(ScalePhase.OBEYED, "", name)
            return
        worker = self._fleet.newest.get(order.worker)
        if isinstance(worker, WorkerProcess) and worker.alive:
            worker.when_awake(partial(self._leave, worker))

    def _leave(self, worker: WorkerProcess) -> None:
        """As `common.worker.daemon` stops: it says so, and ends when it holds nothing."""
        if worker.alive:
            self._fleet.scale_reached(ScalePhase.OBEYED, "", worker.name)
            worker.leave()

    # ------------------------------------------------------------ what must hold

    def _judge(self, router: RouterProcess, tables: Tables, order: ScaleOrder) -> None:
        if any(call.order.id == order.id for call in self.calls):
            self._clock.violate(f"the hook is called twice for {order.id}")
        for call in self.calls:
            if call.order.model == order.model and not self._over(call) and self._known(call):
                sentence = f"{order.id} is ordered while {call.order.id} is open"
                self._clock.violate(f"{router.name}: {sentence}")
        if not order.out:
            self._judge_stop(tables, order)

    def _over(self, call: Call) -> bool:
        order, now = call.order, self._clock.now
        if now >= call.deadline - 1e-6 or call.habit == "unheard":
            return True
        if order.out:
            # Also one that came back by itself: no router can tell it from what a hook started.
            processes = self._fleet.processes.values()
            came = {process.name for process in processes if order.role in process.role.parts}
            return len([name for name in came if name not in order.names]) >= order.count
        gone = [p for p in self._fleet.processes.values() if p.name == order.worker]
        return any(isinstance(p, WorkerProcess) and (p.leaves or not p.alive) for p in gone)

    def _known(self, call: Call) -> bool:
        """Whether a gateway lives undisturbed that can tell a router of this call."""
        return any(
            gateway.born < call.at and gateway.calm(SETTLE_SECONDS)
            for gateway in self._fleet.gateways()
        )

    def _judge_stop(self, tables: Tables, order: ScaleOrder) -> None:
        row = next(w for w in tables.workers.values() if w.name == order.worker and not w.away)
        if row.held or not row.drained:
            self._clock.violate(f"{row.name} is to stop with {len(row.held)} requests")
        ready = [w for w in tables.workers.values() if w.ready]
        decodes = sum(worker.role.decodes for worker in ready)
        prefills = sum(worker.role.prefills for worker in ready)
        if order.role is Role.DECODE and decodes < tables.scale.floor:
            self._clock.violate(f"{order.worker} is to stop, and {decodes} decode workers stay")
        if order.role is Role.DECODE and prefills and not decodes:
            self._clock.violate(f"{order.worker} is to stop, and no decode worker stays")
        if tables.scale.floor and order.role is Role.PREFILL and not prefills:
            self._clock.violate(f"{order.worker} is to stop, and no prefill worker stays")

    def verdict(self) -> None:
        """At the end: no worker is drained for an order that is over, unless all that knew of the
        order died."""
        orders = [
            tables.scale.open
            for router in self._fleet.routers()
            for tables in router.core.shared.models.values()
        ]
        kept = {order.worker for order in orders if order is not None}
        told = {
            row.identity
            for router in self._fleet.routers()
            for row in router.core.shared.workers()
            if row.drain_ordered is False  # it is on its way
        }
        left = self._left_to_the_dead()
        for worker in self._fleet.workers():
            over = worker.name not in kept and worker.identity not in told
            forgotten = self._forgotten(worker.name) or worker.identity in left
            if worker.drained and over and not worker.leaves and not forgotten:
                self._clock.violate(f"{worker.name} is drained for ever")

    def _left_to_the_dead(self) -> set[str]:
        """Workers (identities) that were out of reach when their order ended, so that only a router
        which died then knew that they were to work again."""
        dead = [p for p in self._fleet.processes.values() if p.role is Role.ROUTER and not p.alive]
        return {
            row.identity
            for router in cast("list[RouterProcess]", dead)
            for tables in router.core.shared.models.values()
            for row in tables.workers.values()
            if row.drain_ordered is False or row.name in tables.scale.resumes
        }

    def _forgotten(self, worker: str) -> bool:
        """Whether a router died, and no gateway that kept the order for this worker (name) lived on
        until its successor could ask."""
        keepers = self._keepers.get(worker, ("", set()))[1]
        gateways = [g for g in self._fleet.gateways() if g.identity in keepers]
        there = [p for p in self._fleet.processes.values() if p.role is Role.ROUTER]
        for dead, successor in pairwise(there):
            asks = successor.born + SETTLE_SECONDS
            before = [gateway for gateway in gateways if gateway.born < dead.disturbed]
            if not any(gateway.alive or gateway.disturbed > asks for gateway in before):
                return True
        return False


class ScaleFaults(Faults):
    """`struck`: how often each fault came in each phase."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        super().__init__(fleet)
        fleet.judge.faultless = False
        self.struck: Counter[tuple[ScalePhase, str]] = Counter()
        self._dice = random.Random(seed)
        pairs = list(product(ScalePhase, FAULTS))
        turn = random.Random(seed // len(pairs)).sample(pairs, len(pairs))
        self._pending = [turn[(seed * STRIKES + i) % len(pairs)] for i in range(STRIKES)]
        if self._dice.random() < TAKEN_OVER_SHARE:
            self._pending.append((ScalePhase.ASKED, "kill router"))
        fleet.hooks = Hooks(fleet, seed)
        fleet.scale = (MORE, FEWER, ZERO)[seed % 3]
        fleet.floor = 0 if fleet.scale is ZERO else 1
        fleet.scale_reached = self._reached

    def make_slow(self) -> None:
        """Where workers are to stop, they hold something."""
        for worker in self._fleet.workers() if self._fleet.scale is FEWER else ():
            worker.engine.slow = 8.0

    def verdict(self) -> None:
        """At the end. An operator's drain may be forgotten: the router that was to end it died."""
        operators = {"drain", "evict"} & set(self._kinds)
        if self._fleet.judge.strict and not operators and self._fleet.hooks is not None:
            self._fleet.hooks.verdict()

    def _reached(self, phase: str, router: str, worker: str) -> None:
        strike = next((pair for pair in self._pending if pair[0] == phase), None)
        if strike is not None:
            self._pending.remove(strike)
            self._clock.after(0.0, partial(self._strike, strike, worker))

    def _strike(self, strike: tuple[ScalePhase, str], worker: str) -> None:
        fault = strike[1]
        victims: dict[str, Process | None] = {
            "router": next(self._fleet.routers(), None),
            "gateway": self._pick(GatewayProcess),
            "worker": self._fleet.newest.get(worker) or self._pick(WorkerProcess),
        }
        victim = victims.get(fault.rpartition(" ")[2], victims["worker"])
        forgets = fault == "kill router" and "poison" in self._kinds
        if victim is None or not victim.alive or forgets:
            return
        self.struck[strike] += 1
        self._say(f"{fault} at {strike[0]}", victim)
        if fault == "kill another":
            alike = [w for w in self._alive(WorkerProcess) if w.role is victim.role]
            for other in [worker for worker in alike if worker is not victim][:1]:
                self._fell(other)
        elif fault.startswith("kill"):
            self._fell(victim)
        elif fault.startswith("hang"):
            self._stand_still(victim, self._dice.uniform(0.1, 1.0))
        elif fault == "resume":
            self._order_drain(victim, on=False)
        else:
            for gateway in self._alive(GatewayProcess):
                self._cut_off(gateway)

    def _fell(self, victim: Process) -> None:
        if isinstance(victim, WorkerProcess | GatewayProcess):
            self._fleet.judge.killed_by_chance.add(victim.identity)
            self._fleet.judge.killed(victim)
        victim.die()
        self._ends(self._dice.uniform(0.05, 0.6), lambda: self._replace(victim))

    def _cut_off(self, victim: Process) -> None:
        for connection in list(self._fleet.network.connections()):
            if connection.dialer is victim:
                victim.disturb()
                connection.listener.disturb()
                connection.close()
        self.last_end = max(self.last_end, self._clock.now + 0.5)
