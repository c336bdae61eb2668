"""What goes wrong, drawn from the seed. Everything that begins ends by itself: the dead come back
with a new incarnation, partitions heal, the stopped go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from common.messages import HealthVerdict
from services.router.events import RequestMoved, RoleOrdered, WorkerDrained, WorkerEvicted
from services.router.fleet.roles import WITH_ENGINE, why_not
from tests.simulation.world.engines import POISON
from tests.simulation.world.fleet import Fleet
from tests.simulation.world.gateway import Client, GatewayProcess, spec
from tests.simulation.world.process import Process
from tests.simulation.world.router import RouterProcess
from tests.simulation.world.workers import DecodeProcess, WorkerProcess

KINDS = ("kill", "blip", "hang", "slow", "cut", "deaf", "data", "usurp", "router", "drain")
WEATHERS: dict[str, tuple[str, ...]] = {
    "calm": (),
    "crashes": ("kill", "kill", "kill", "router"),
    "network": ("blip", "blip", "cut", "deaf", "data"),
    "stalls": ("hang", "slow", "hang", "kill"),
    "mixed": KINDS,
    "router": ("router", "blip", "kill"),
    "twice": ("kill", "blip"),
    "loss": ("kill", "blip", "cut"),
    "doubt": ("doubt", "doubt", "doubt", "kill", "router"),
    "poison": ("poison",),
    "storm": ("poison", "kill", "kill", "hang"),
    "drains": ("drain", "drain", "drain", "drain", "kill", "data", "router"),
    "moves": ("move", "move", "move", "move", "move", "evict", "evict", "drain", "kill", "data"),
    "orders": ("move", "move", "move", "drain"),
}
ODDS = (1, 3, 3, 2, 4, 2, 1, 1, 1, 1, 1, 2, 3, 2)
ROLE_SHARE = 3
ROLE_BACK_SHARE = 0.2
#: In these operators move streams.
ORDERED = frozenset({"moves", "orders"})
#: In these there is room for streams to move.
MOVING = ORDERED | {"drains"}


class Faults:
    """`weather` names the mix of a seed; `counts`: how often each kind happened. `roles`: operators
    also let workers change their role."""

    def __init__(self, fleet: Fleet, *, roles: bool = False) -> None:
        self._fleet = fleet
        self._roles = roles
        self._clock = fleet.clock
        self._random = fleet.clock.random
        self.weather = self._random.choices(list(WEATHERS), ODDS)[0]
        self.counts: dict[str, int] = {}
        self.last_end = 0.0
        self._until = 0.0
        self._poisons = 0
        fleet.network.twice = 0.05 if self.weather == "twice" else 0.0
        fleet.network.loss = 0.02 if self.weather == "loss" else 0.0
        fleet.judge.strict = self.weather != "loss"
        fleet.judge.faultless = self.weather in ("calm", "orders")
        fleet.poisoned = self._poisoned
        self._poison_client: Client | None = None

    def start(self, until: float) -> None:
        self._until = until
        self._kinds = WEATHERS[self.weather] + (("role",) * ROLE_SHARE if self._roles else ())
        if self._kinds:
            self._clock.after(self._random.uniform(0.3, 0.8), self._next)

    def _next(self) -> None:
        if self._clock.now >= self._until:
            return
        kind = self._random.choice(self._kinds)
        inflict: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "blip": self._blip,
            "hang": self._hang,
            "slow": self._slow,
            "cut": lambda: self._cut(both=True),
            "deaf": lambda: self._cut(both=False),
            "data": self._data,
            "usurp": self._usurp,
            "router": self._router,
            "doubt": self._doubt,
            "poison": self._poison,
            "drain": self._drain,
            "move": self._move,
            "evict": self._evict,
            "role": self._role,
        }
        self.counts[kind] = self.counts.get(kind, 0) + 1
        inflict[kind]()
        pause = self._random.uniform(0.1, 0.5)
        self._clock.after(pause / 2 if self.weather in ORDERED else pause, self._next)

    def _ends(self, seconds: float, act: Callable[[], None]) -> None:
        self.last_end = max(self.last_end, self._clock.now + seconds)
        self._clock.after(seconds, act)

    def _alive(self, *kinds: type[Process]) -> list[Process]:
        newest = self._fleet.newest.values()
        return [p for p in newest if p.alive and isinstance(p, kinds)]

    def _pick(self, *kinds: type[Process]) -> Process | None:
        there = self._alive(*kinds)
        return self._random.choice(there) if there else None

    def _say(self, what: str, *victims: Process) -> None:
        names = " ".join(victim.identity for victim in victims)
        self._clock.note(f"fault: {what} {names}")

    # ------------------------------------------------------------ processes

    def _kill(self) -> None:
        victim = self._pick(WorkerProcess, WorkerProcess, GatewayProcess)
        if victim is None:
            return
        self._say("kill", victim)
        self._fleet.judge.killed_by_chance.add(victim.identity)
        self._fleet.judge.killed(victim)
        victim.die()
        self._ends(self._random.uniform(0.05, 1.2), lambda: self._replace(victim))

    def _poison(self) -> None:
        """A client sends the prompt that kills, one at a time and always the same."""
        gateways = [g for g in self._alive(GatewayProcess) if not g.hung]
        last = self._poison_client
        if not gateways or (last is not None and not last.end and last.gateway.alive):
            return
        gateway = self._random.choice(gateways)
        assert isinstance(gateway, GatewayProcess)
        self._poisons += 1
        self._fleet.judge.poisons_left += last is not None and not last.end
        request = spec(f"{gateway.identity}/poison{self._poisons}", POISON, 9, 5, 0.0)
        self._say("poison", gateway)
        self._poison_client = gateway.open(request, 0.0)

    def _poisoned(self, victim: Process, attempt: str) -> None:
        self._say("poisoned", victim)
        self._fleet.judge.poisoned(victim.identity, attempt)
        self._fleet.judge.killed(victim)
        victim.die()
        self._ends(self._random.uniform(0.05, 1.2), lambda: self._replace(victim))

    def _replace(self, victim: Process) -> None:
        if self._fleet.newest[victim.name] is victim:
            self._fleet.add(victim.successor())

    def _router(self) -> None:
        victim = self._pick(RouterProcess)
        if victim is None:
            return
        if self._random.random() < 0.3:
            self._say("hang", victim)
            self._stand_still(victim, self._random.uniform(0.2, 2.0))
            return
        self._say("kill", victim)
        victim.die()
        self._ends(self._random.uniform(0.05, 0.8), lambda: self._replace(victim))

    def _hang(self) -> None:
        victim = self._pick(WorkerProcess, GatewayProcess)
        if victim is None:
            return
        self._say("hang", victim)
        self._stand_still(victim, self._random.uniform(0.1, 2.5))

    def _stand_still(self, victim: Process, seconds: float) -> None:
        """It may be taken for dead, and its death for that of a prompt."""
        self._fleet.judge.killed_by_chance.add(victim.identity)
        victim.hang(seconds)
        self._ends(seconds, lambda: None)

    def _doubt(self) -> None:
        """The health daemon of its host has something against it, rightly or not."""
        victim = self._pick(WorkerProcess)
        if not isinstance(victim, WorkerProcess):
            return
        self._say("doubt", victim)
        down = self._random.random() < 0.5
        victim.health_verdict = HealthVerdict(reason="no token of its canary", down=down)

        def content() -> None:
            victim.health_verdict = None

        self._ends(self._random.uniform(0.3, 2.0), content)

    def _drain(self) -> None:
        """An operator drains a decode worker, and resumes it."""
        victim = self._pick(DecodeProcess)
        if victim is None:
            return
        self._say("drain", victim)
        self._order_drain(victim, on=True)

        def resume() -> None:
            self._order_drain(self._fleet.newest[victim.name], on=False)

        self._ends(self._random.uniform(0.5, 2.0), resume)

    def _move(self) -> None:
        """An operator moves a request, in whatever phase it is, perhaps to a worker of his choice,
        which may be unfit. The verb would refuse what the core only ignores."""
        routers = [r for r in self._alive(RouterProcess) if isinstance(r, RouterProcess)]
        attempts = [key for r in routers for key in r.core.tables.attempts]
        if not attempts:
            return
        key = self._random.choice(attempts)
        names = ["", "", *(p.identity for p in self._alive(DecodeProcess))]
        event = RequestMoved(*key, target=self._random.choice(names))
        self._clock.note(f"fault: move {event}")
        for router in routers:
            router.when_awake(lambda r=router: r.feed(event))  # type: ignore[misc]

    def _role(self) -> None:
        """An operator orders a role of one router or of all, where its verb does not refuse; now
        and then the order is taken back."""
        victim = self._pick(WorkerProcess)
        if victim is None:
            return
        back = self._random.random() < ROLE_BACK_SHARE
        routers = [r for r in self._alive(RouterProcess) if isinstance(r, RouterProcess)]
        for router in routers:
            row = router.core.shared.worker(victim.identity)
            if row is None:
                continue
            role = self._random.choice([r for r in WITH_ENGINE if r is not row.role])
            workers = router.core.shared.owners[row.identity].workers.values()
            if not why_not(workers, row, role, "disaggregated", self._clock.now):
                self._say(f"{role} for", victim)
                self._feed_role(router, RoleOrdered(victim.identity, role))
                if back:
                    present = RoleOrdered(victim.identity, row.role)
                    seconds = self._random.uniform(0.0, 0.3)
                    self._clock.after(seconds, partial(self._feed_role, router, present))

    @staticmethod
    def _feed_role(router: RouterProcess, event: RoleOrdered) -> None:
        router.when_awake(lambda: router.feed(event))

    def _evict(self) -> None:
        """An operator evicts a decode worker, perhaps twice, and resumes it."""
        victim = self._pick(DecodeProcess)
        if victim is None:
            return
        self._say("evict", victim)
        victim.disturb()
        for router in self._alive(RouterProcess):
            assert isinstance(router, RouterProcess)
            for _ in range(self._random.choice([1, 1, 2])):
                router.when_awake(lambda r=router: r.feed(WorkerEvicted(victim.identity)))  # type: ignore[misc]

        def resume() -> None:
            self._order_drain(self._fleet.newest[victim.name], on=False)

        self._ends(self._random.uniform(0.5, 3.0), resume)

    def _order_drain(self, victim: Process, *, on: bool) -> None:
        for router in self._alive(RouterProcess):
            assert isinstance(router, RouterProcess)
            router.when_awake(lambda r=router: r.feed(WorkerDrained(victim.identity, on=on)))  # type: ignore[misc]

    def _slow(self) -> None:
        victim = self._pick(WorkerProcess)
        if not isinstance(victim, WorkerProcess):
            return
        self._say("slow", victim)
        engine = victim.engine
        engine.slow = self._random.uniform(3.0, 20.0)
        victim.disturb()

        def recover() -> None:
            engine.slow = 1.0
            victim.disturb()

        self._ends(self._random.uniform(0.3, 1.5), recover)

    def _usurp(self) -> None:
        """A second process takes a worker's name while the first one lives on."""
        victim = self._pick(WorkerProcess)
        if victim is not None:
            self._say("usurp", victim)
            self._fleet.judge.killed_by_chance.add(victim.identity)
            victim.disturb()
            self.last_end = max(self.last_end, self._clock.now + 0.5)
            self._fleet.add(victim.successor())

    # ------------------------------------------------------------ network

    def _blip(self) -> None:
        """One connection breaks."""
        there = self._fleet.network.connections()
        if there:
            connection = self._random.choice(there)
            self._say("blip", connection.dialer, connection.listener)
            connection.dialer.disturb()
            connection.listener.disturb()
            connection.close()
            self.last_end = max(self.last_end, self._clock.now + 0.5)

    def _cut(self, *, both: bool) -> None:
        """Nothing comes through between two processes, in one direction or both."""
        there = self._alive(Process)
        if len(there) < 2:
            return
        one, other = self._random.sample(there, 2)
        pairs = [(one.name, other.name)] + ([(other.name, one.name)] if both else [])
        self._say("cut" if both else "deaf", one, other)
        for victim in (one, other):
            victim.disturb()
        self._fleet.network.block(pairs)
        self._ends(self._random.uniform(0.1, 2.5), lambda: self._heal(pairs, data=False))

    def _data(self) -> None:
        """Only the KV plane between a worker and a D."""
        source, decode = self._pick(WorkerProcess), self._pick(DecodeProcess)
        if source is None or decode is None or source is decode:
            return
        self._say("data", source, decode)
        pairs = [(source.name, decode.name)]
        source.disturb()
        self._fleet.network.block(pairs, data=True)
        self._ends(self._random.uniform(0.3, 1.5), lambda: self._heal(pairs, data=True))

    def _heal(self, pairs: list[tuple[str, str]], *, data: bool) -> None:
        self._clock.note(f"heal {pairs}")
        self._fleet.network.heal(pairs, data=data)
        for name in {name for pair in pairs for name in pair}:
            self._fleet.newest[name].disturb()
