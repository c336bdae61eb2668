"""One seed: a fleet, its clients, its faults, its verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

from common.messages import PriorityClass
from tests.simulation.world.clock import Clock
from tests.simulation.world.faults import MOVING, ORDERED, Faults
from tests.simulation.world.fleet import Fleet
from tests.simulation.world.gateway import GatewayProcess, spec
from tests.simulation.world.network import Network
from tests.simulation.world.scaling import ScaleFaults
from tests.simulation.world.switches import SwitchFaults
from tests.simulation.world.workers import DecodeProcess, MixedProcess, PrefillProcess

LONG_PROMPT_MAX = 50
LOAD_SECONDS = 1.5
SETTLE_SECONDS = 14.0
CALM_AFTER = 0.8
PULSE = 0.2
WIRE_SHARE = 0.05
MIXED_EVERY = 6
"""So often a worker begins in both roles, beside which controllers do nothing."""
#: Of the worlds in which operators move streams, those of a model whose KV moves.
FULL_SHARE = 0.8
BATCH_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to. `model`: what its fleet served. `ends`: how its requests ended, by how
    often."""

    seed: int
    hash: str
    weather: str
    model: str
    events: int
    requests: int
    dispatches: int
    first_dispatches: int
    moves: int
    taken: int
    copied: int
    ahead: int
    moved: dict[str, int]
    ends: dict[str, int]
    faults: dict[str, int]
    #: Faults in chosen phases of a change of role, by phase and fault.
    struck: dict[str, int]
    #: Orders that the controllers of roles gave.
    balanced: int
    virtual_seconds: float


class Kinds(TypedDict, total=False):
    """What is special about a world; each is told at `World`."""

    warm: bool
    roles: bool
    switches: bool
    budgets: bool
    scaling: bool
    slots: bool
    paces: bool


class World:
    """`lines`: the event log, when `trace` was asked for. `models`: names of those that its fleet
    serves; each has as many workers, and requests ask for them in turn. `warm`: each has one that
    sleeps until it is needed, too. `roles`: workers change their role, of which there is one more
    each. `switches`: they do so more often, and faults come in chosen phases of it. `budgets`:
    requests are promised KV in parts, answers are long, and load is evened out. `scaling`: hooks
    start and stop workers, and faults come in chosen phases of their orders. `slots`: decode
    workers are short of slots and prompts take long, so that they begin ahead of their slots.
    `paces`: decode workers are not equally fast, and tokens are to come in time."""

    def __init__(
        self,
        seed: int,
        *,
        trace: bool = False,
        models: tuple[str, ...] = ("model",),
        warm: bool = False,
        roles: bool = False,
        switches: bool = False,
        budgets: bool = False,
        scaling: bool = False,
        slots: bool = False,
        paces: bool = False,
    ) -> None:
        self.seed = seed
        self.clock = Clock(seed)
        if trace:
            self.clock.lines = []
        self.network = Network(self.clock, delay=0.001, loss=0.0, twice=0.0)
        self.fleet = Fleet(self.clock, self.network, models, warm=warm)
        for wanted, draw in (
            (budgets, self.fleet.draw_budgets),
            (slots, self.fleet.want_slots),
            (paces, self.fleet.draw_paces),
        ):
            if wanted:
                draw()
        self.faults = Faults(self.fleet, roles=roles)
        if switches:
            self.faults = SwitchFaults(self.fleet, seed)
        if scaling:
            self.faults = ScaleFaults(self.fleet, seed)
        self._roles, self._scaling = roles or switches, scaling
        self._pace = self.clock.random.choice([0.02, 0.05, 0.12])
        if self.faults.weather == "drains":
            self._pace *= 8  # where others wait, streams stay
        if self.faults.weather in ORDERED:
            self._pace *= self.clock.random.choice([1, 2, 6])
        if warm:
            self._pace /= 4  # so that queues are long enough to wake a worker for
        if scaling:
            self._pace *= 3
        self.network.wire = self.clock.random.random() < WIRE_SHARE
        self._serial = 0
        #: Orders for workers take their time.
        self._load_seconds = LOAD_SECONDS * (3 if scaling else 1)

    @property
    def lines(self) -> list[str]:
        return self.clock.lines or []

    def run(self) -> Outcome:
        """Raises PromiseBrokenError."""
        clock = self.clock
        if self.faults.weather in ORDERED and clock.random.random() < FULL_SHARE:
            self.fleet.serve("full")
        self.fleet.build()
        if self._roles:
            self.fleet.add(PrefillProcess(self.fleet, "p7"))
            self.fleet.add(DecodeProcess(self.fleet, "d7"))
        if self.seed % MIXED_EVERY == 0 and (self._roles or self._scaling):
            self.fleet.add(MixedProcess(self.fleet, "m7"))
        if self.faults.weather in MOVING:
            self._make_room()
        if isinstance(self.faults, ScaleFaults):
            self.faults.make_slow()
        self.faults.start(self._load_seconds)
        clock.after(0.1, self._arrival)
        clock.after(PULSE, self._pulse)
        clock.run(self._load_seconds)
        # What is parked waits its turn, too, and messages vanish to the end.
        patience = 2 if self.fleet.budgets or self.network.loss else 1
        clock.run(self._load_seconds + patience * SETTLE_SECONDS, self._over)
        self.fleet.judge.verdict()
        if isinstance(self.faults, ScaleFaults):
            self.faults.verdict()
        return self._outcome()

    def _over(self) -> bool:
        settled = self.clock.now > max(self._load_seconds, self.faults.last_end) + CALM_AFTER
        return settled and self.fleet.at_rest()

    def _make_room(self) -> None:
        """More decode workers, and streams that are still there when theirs is drained."""
        self.fleet.add(DecodeProcess(self.fleet, "d9"))
        if self.faults.weather != "drains":
            self.fleet.add(DecodeProcess(self.fleet, "d8"))
        for worker in self.fleet.workers():
            worker.engine.slow = 5.0

    def _pulse(self) -> None:
        self.fleet.judge.pulse()
        self.clock.after(PULSE, self._pulse)

    def _arrival(self) -> None:
        draw, clock = self.clock.random, self.clock
        if clock.now >= self._load_seconds:
            return
        gateways = [g for g in self.fleet.gateways() if g.alive and not g.hung]
        if gateways:
            self._open(draw.choice(gateways))
        clock.after(draw.expovariate(1 / self._pace), self._arrival)

    def _open(self, gateway: GatewayProcess) -> None:
        draw = self.clock.random
        self._serial += 1
        prompt, output = draw.choice([2, draw.randint(3, 50), draw.randint(20, 110)]), (1, 14)
        if self.faults.weather == "moves":
            prompt = draw.choice([draw.randint(3, 20), 60, 100])
        if self.faults.weather in MOVING and prompt <= LONG_PROMPT_MAX:
            output = (30, 60)
        if (self.fleet.budgets or self.fleet.slots) and prompt <= LONG_PROMPT_MAX:
            output = (5, 65)
        request = spec(
            f"{gateway.identity}/{self._serial}",
            self._serial,
            prompt=prompt,
            output=draw.randint(*output),
            deadline_ms=draw.choice([0.0, 0.0, 300.0]),
            model=self.fleet.names[self._serial % len(self.fleet.names)],
        )
        ranked = self.faults.weather == "moves" or bool(self.fleet.budgets)
        if ranked and draw.random() < BATCH_SHARE:
            request = replace(request, priority=PriorityClass.BATCH)
        gateway.open(request, draw.uniform(0.0, 0.4) if draw.random() < 0.12 else 0.0)

    def _outcome(self) -> Outcome:
        ends: dict[str, int] = {}
        for gateway in self.fleet.gateways():
            for client in gateway.clients.values():
                how = client.end or "cut off"
                ends[how] = ends.get(how, 0) + 1
        dispatches = self.fleet.tally.dispatches
        return Outcome(
            seed=self.seed,
            hash=self.clock.hash(),
            weather=self.faults.weather,
            model=self.fleet.model,
            events=self.clock.events,
            requests=self._serial,
            dispatches=sum(dispatches.values()),
            first_dispatches=len({request_id for request_id, _ in dispatches}),
            moves=self.fleet.tally.moves,
            taken=self.fleet.tally.taken,
            copied=self.fleet.tally.copied,
            ahead=self.fleet.ahead(),
            moved=self.fleet.moved(),
            ends=ends,
            faults=dict(self.faults.counts),
            struck=self._struck(),
            balanced=self.fleet.balanced(),
            virtual_seconds=self.clock.now,
        )

    def _struck(self) -> dict[str, int]:
        if not isinstance(self.faults, SwitchFaults | ScaleFaults):
            return {}
        return {f"{fault} at {phase}": n for (phase, fault), n in self.faults.struck.items()}
