"""Faults at chosen moments of a change of role, and a controller that changes roles all the time.

A switch passes five phases; each seed draws some pairs of a phase and a fault, and strikes when a
switch reaches the phase, before the next message is delivered. In half of the seeds operators give
the orders, in the other half the routers' own controllers do, as often as they may and whatever the
load is (`balance_watch.py`).
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from functools import partial
from itertools import product

from common.config import BalanceConfig
from services.router.events import RoleOrdered
from tests.simulation.world.faults import Faults
from tests.simulation.world.fleet import Fleet
from tests.simulation.world.process import Process
from tests.simulation.world.router import RouterProcess
from tests.simulation.world.workers import WorkerProcess

CONTROLLER = BalanceConfig(mode="on", gain_min=-10.0)
"""Any split is worth it, so that roles change for ever."""
ORDERS = 5
STRIKES = 3


class Phase(enum.StrEnum):
    """Of a change of role."""

    #: A router sent the order, and the worker has not heard it.
    ORDERED = "ordered"
    #: The worker has heard it, and the router has not heard that.
    TOLD = "told"
    #: The worker says in its beats that it becomes another.
    EMPTYING = "emptying"
    #: The worker has the role, and no router has heard it.
    TAKEN = "taken"
    #: A router knows it in its new role, and has had no beat of it.
    JOINING = "joining"


FAULTS = ("kill router", "hang router", "kill", "hang", "blip", "back", "drain")


class SwitchFaults(Faults):
    """`struck`: how often each fault came in each phase."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        controlled = seed % 2 == 1
        super().__init__(fleet, roles=not controlled)
        fleet.judge.faultless = False
        self.struck: Counter[tuple[Phase, str]] = Counter()
        self._dice = random.Random(seed)
        pairs = list(product(Phase, FAULTS))
        self._pending = [pairs[seed % len(pairs)], *self._dice.choices(pairs, k=STRIKES - 1)]
        fleet.switch_reached = self._reached
        fleet.controller = CONTROLLER if controlled else BalanceConfig()

    def start(self, until: float) -> None:
        super().start(until)
        for _ in range(ORDERS if self._roles else 0):
            self._clock.after(self._dice.uniform(0.2, until), self._role)

    def _reached(self, phase: str, identity: str) -> None:
        strike = next((pair for pair in self._pending if pair[0] == phase), None)
        if strike is not None:
            self._pending.remove(strike)
            self._clock.after(0.0, partial(self._strike, strike, identity))

    def _strike(self, strike: tuple[Phase, str], identity: str) -> None:
        victim, fault = self._fleet.processes.get(identity), strike[1]
        if not isinstance(victim, WorkerProcess) or not victim.alive:
            return
        router = next(self._fleet.routers(), None)
        struck: Process | None = router if fault.endswith("router") else victim
        forgets = fault == "kill router" and "poison" in self._kinds
        if struck is None or forgets:  # a router's quarantine of prompts dies with it
            return
        self.struck[strike] += 1
        self._say(f"{fault} at {strike[0]}", victim)
        if fault.startswith("kill"):
            self._fell(struck)
        elif fault.startswith("hang"):
            self._stand_still(struck, self._dice.uniform(0.1, 2.0))
        elif fault == "blip":
            self._cut_off(victim)
        elif fault == "back":
            for each in self._fleet.routers():
                self._feed_role(each, RoleOrdered(identity, victim.role))
        else:
            self._order_drain(victim, on=True)
            self._ends(self._dice.uniform(0.2, 1.0), partial(self._resume, victim.name))

    def _fell(self, victim: Process) -> None:
        if isinstance(victim, WorkerProcess):
            self._fleet.judge.killed_by_chance.add(victim.identity)
            self._fleet.judge.killed(victim)
        victim.die()
        self._ends(self._dice.uniform(0.05, 0.8), lambda: self._replace(victim))

    def _cut_off(self, victim: WorkerProcess) -> None:
        """Its connections to routers break."""
        for connection in list(self._fleet.network.connections()):
            if connection.dialer is victim and isinstance(connection.listener, RouterProcess):
                victim.disturb()
                connection.listener.disturb()
                connection.close()
        self.last_end = max(self.last_end, self._clock.now + 0.5)

    def _resume(self, name: str) -> None:
        self._order_drain(self._fleet.newest[name], on=False)
