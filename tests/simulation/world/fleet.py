"""All processes of a world and who knows whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from common.config import BalanceConfig, ScaleConfig
from common.messages import Role
from tests.simulation.world.budget_judge import BudgetJudge
from tests.simulation.world.clock import Clock
from tests.simulation.world.engines import BothEngines, DecodeEngine, PrefillEngine
from tests.simulation.world.gateway import GatewayProcess
from tests.simulation.world.judge import Judge
from tests.simulation.world.models import MODELS, ODDS
from tests.simulation.world.network import Network
from tests.simulation.world.process import Process
from tests.simulation.world.router import RouterProcess
from tests.simulation.world.workers import WARM, DecodeProcess, PrefillProcess, WorkerProcess

if TYPE_CHECKING:
    from tests.simulation.world.scaling import Hooks

SHAPES = ((1, 1), (2, 2), (1, 3), (0, 2), (3, 1), (1, 2))


class Tally:
    """What was asked of decode workers: how often each (request, attempt) was dispatched, how many
    streams were to move, and how many of these were continued from their KV."""

    def __init__(self) -> None:
        self.dispatches: Counter[tuple[str, int]] = Counter()
        self.moves = self.taken = 0
        self.woken = self.slept = 0
        #: How many streams were copied ahead of their move.
        self.copied = 0
        #: Changes of role, by the worker's identity and the epoch.
        self.roles: dict[tuple[str, int], Role] = {}

    def took_role(self, worker: WorkerProcess) -> None:
        """Once for each epoch of a worker, and never the role that it had."""
        identity, epoch = worker.identity, worker.core.epoch
        began = Role.MIXED if worker.mixed else worker.configured
        before = self.roles.get((identity, epoch - 1), began)
        if (identity, epoch) in self.roles or worker.role is before:
            worker.clock.violate(f"{identity} takes the role {worker.role} in epoch {epoch}")
        self.roles[identity, epoch] = worker.role
        worker.fleet.switch_reached("taken", identity)

    def dispatched(self, request_id: str, attempt: int) -> None:
        self.dispatches[request_id, attempt] += 1


class Fleet:
    """`processes`: every one there ever was, by identity. `newest`: the one of each name. `model`:
    what its engines keep. `names`: of the models that it serves."""

    def __init__(
        self, clock: Clock, network: Network, names: tuple[str, ...], *, warm: bool
    ) -> None:
        #: Whether each model has a warm decode worker, too.
        self.warm = warm
        #: Blocks of KV that a request is promised at a time, by class; empty = all.
        self.budgets: tuple[int, ...] = ()
        #: Slots of each worker, as `Capacity` has them; 0 = those of the model.
        self.slots = 0
        #: As in `[router]`.
        self.slots_ahead_max = 0.25
        #: How many times longer prefill workers need for a prompt.
        self.prompt_times = 1.0
        #: As in `[router]`; and how many times longer a step takes, by the name of the worker.
        self.itl_slo_ms = 0.0
        self.paces: dict[str, float] = {}
        self.names = names
        self.clock = clock
        self.network = network
        self.processes: dict[str, Process] = {}
        self.newest: dict[str, Process] = {}
        self.router_names = ["r0"]
        self.tally = Tally()
        self.judge = Judge(self)
        self.budget_judge = BudgetJudge(self)
        self.serve(clock.random.choices(list(MODELS), ODDS)[0])
        #: What happens to a process that computed poison, which this attempt brought; `Faults` sets
        #: it.
        self.poisoned: Callable[[Process, str], None] = lambda process, attempt: None
        #: What happens when a change of role reaches a phase (`switches.Phase`), of the worker with
        #: this identity; `SwitchFaults` sets it, and the routers' controller.
        self.switch_reached: Callable[[str, str], None] = lambda phase, identity: None
        self.controller = BalanceConfig()
        #: Of the controller of numbers, what its hooks do, what happens when one of its orders
        #: reaches a phase (by the router's identity and the name of the worker that is to stop),
        #: and how many decode workers stay; `ScaleFaults` sets them.
        self.scale = ScaleConfig()
        self.hooks: Hooks | None = None
        self.floor = 1
        self.scale_reached: Callable[[str, str, str], None] = lambda phase, router, worker: None

    def serve(self, model: str) -> None:
        """Before `build`. `capacity` is that of each worker."""
        self.model, self.capacity = model, MODELS[model]
        if self.slots:
            blocks = 3 * self.capacity.kv_blocks
            changed = {"max_num_seqs": self.slots, "kv_blocks": blocks}
            self.capacity = msgspec.structs.replace(self.capacity, **changed)

    def want_slots(self) -> None:
        """Before `build`. Decode workers are short of slots, not of KV; prompts take long, and many
        workers compute them."""
        self.slots, self.slots_ahead_max, self.prompt_times = 4, 0.5, 5.0
        self.serve(self.model)

    def draw_paces(self) -> None:
        """Before `build`. Tokens are to come in time, and some workers are slower than others, one
        of them maybe too slow."""
        self.itl_slo_ms = self.clock.random.choice([15.0, 25.0, 45.0])
        paces = [self.clock.random.choice([1.0, 1.0, 1.5, 3.0]) for _ in range(8)]
        self.paces = {f"d{number}": pace for number, pace in enumerate(paces)}

    def draw_budgets(self) -> None:
        """Before `build`. A class without a budget is promised all."""
        self.budgets = tuple(self.clock.random.choice([2, 3, 5, 8, 0]) for _ in range(3))

    @property
    def budget_bytes(self) -> tuple[int, ...]:
        """By class, as a fleet file has them."""
        return tuple(blocks * self.capacity.kv_block_bytes for blocks in self.budgets)

    def build(self) -> None:
        prefills, decodes = self.clock.random.choice(SHAPES)
        prefills *= 4 if self.slots else 1
        for name in self.router_names:
            self.add(RouterProcess(self, name))
        for i in range(2):
            self.add(GatewayProcess(self, f"g{i}"))
        for number in range(len(self.names)):
            suffix = chr(ord("a") + number) if number else ""
            for i in range(prefills):
                self.add(PrefillProcess(self, f"p{i}{suffix}"))
            for i in range(decodes):
                self.add(DecodeProcess(self, f"d{i}{suffix}"))
            if self.warm:
                self.add(DecodeProcess(self, f"{WARM}0{suffix}"))

    def model_of(self, worker: str) -> str:
        """The name of the model that a worker of this name serves: its letter says which."""
        return self.names[ord(worker[-1]) - ord("a") if worker[-1].isalpha() else 0]

    def add(self, process: Process) -> None:
        self.processes[process.identity] = process
        self.newest[process.name] = process
        self.clock.note(f"start {process.identity}")
        process.start()

    def router(self, name: str) -> RouterProcess | None:
        process = self.newest.get(name)
        return process if isinstance(process, RouterProcess) else None

    def kv_engine(self, identity: str) -> PrefillEngine | DecodeEngine | BothEngines | None:
        """None when that process is dead."""
        process = self.processes.get(identity)
        if isinstance(process, WorkerProcess) and process.alive:
            return process.engine
        return None

    def routers(self) -> Iterator[RouterProcess]:
        """Those alive."""
        for name in self.router_names:
            router = self.router(name)
            if router is not None and router.alive:
                yield router

    def gateways(self) -> Iterator[GatewayProcess]:
        """All, the dead included: their clients were promised nothing more."""
        for process in self.processes.values():
            if isinstance(process, GatewayProcess):
                yield process

    def workers(self) -> Iterator[WorkerProcess]:
        """Those alive."""
        for process in self.processes.values():
            if isinstance(process, WorkerProcess) and process.alive:
                yield process

    def routers_calm(self, seconds: float) -> bool:
        names = [self.router(name) for name in self.router_names]
        return all(router is not None and router.calm(seconds) for router in names)

    def routers_undisturbed(self) -> bool:
        """Never since the beginning."""
        return all(
            router is not None and router.number == 1 and router.disturbed == router.born
            for router in (self.router(name) for name in self.router_names)
        )

    def router_restarted(self) -> bool:
        """A new router does not know what the old one gave to whom."""
        routers = [self.router(name) for name in self.router_names]
        return any(router is not None and router.number > 1 for router in routers)

    def moved(self) -> dict[str, int]:
        """How often streams moved, by reason and outcome, as the routers that live counted."""
        found: Counter[str] = Counter()
        for router in self.routers():
            for (reason, outcome), times in router.core.tables.counts.moves.items():
                found[f"{reason.value} {outcome.value}"] += times
        return dict(found)

    def ahead(self) -> int:
        """Prompts that began before their decode worker had a slot, as such routers counted."""
        return sum(router.core.tables.counts.placed_ahead for router in self.routers())

    def balanced(self) -> int:
        """Orders that the controllers of all routers gave that there ever were."""
        routers = [p for p in self.processes.values() if isinstance(p, RouterProcess)]
        roles = sum(balance.orders for router in routers for balance in router.balances)
        return roles + sum(scale.orders for router in routers for scale in router.scales)

    def submitted(self) -> int:
        """Requests that clients asked for."""
        return sum(len(gateway.clients) for gateway in self.gateways())

    def at_rest(self) -> bool:
        """Nobody holds anything any more."""
        for router in self.routers():
            if any(router.core.shared.attempts()):
                return False
        if any(gateway.core.active for gateway in self.gateways() if gateway.alive):
            return False
        busy = any(worker.core.active or worker.engine.held for worker in self.workers())
        return not busy and not any(self.twins(worker) for worker in self.workers())

    def twins(self, worker: WorkerProcess) -> bool:
        """Another process of this name lives, too: one must give way."""
        return sum(other.name == worker.name for other in self.workers()) > 1
