"""The promises, checked on the mechanism. Checks that a fault may excuse for a while ask first
whether everybody concerned has been calm for long enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import BatonError
from common.messages import Role
from services.router.placement.types import WaitFor
from services.router.records.states import AttemptState, WorkerState
from services.router.records.worker import Worker
from services.router.rules import preempt
from services.router.tables import Tables
from tests.simulation.world.clock import Clock
from tests.simulation.world.engines import LEASE_SECONDS, POISON
from tests.simulation.world.gateway import TOKEN_WAIT_MS, Client, GatewayProcess
from tests.simulation.world.models import FULL, GRANT, Held, blocks_held
from tests.simulation.world.process import Process
from tests.simulation.world.router import (
    QUEUE_SECONDS,
    RETRY_BURST,
    RETRY_PER_SECOND,
    RETRY_SHARE,
    RouterProcess,
)
from tests.simulation.world.workers import WorkerProcess

if TYPE_CHECKING:
    from tests.simulation.world.fleet import Fleet

FOUND_SECONDS = 0.45
ZOMBIE_SECONDS = 0.5
IDLE_SECONDS = 0.5
CALM_SECONDS = 1.5
LATE_SECONDS = 0.45
POISON_ATTEMPTS_MAX = 3
ANSWER_SECONDS = 3.0
LONGEST_WAIT = ("no worker was found for it", "sent nothing for this request")
FAULTLESS = frozenset(
    {
        "finished",
        "left",
        "queue_full",
        "overloaded",
        "deadline_exceeded",
        "context_length_exceeded",
    }
)


class Judge:
    """`strict` is off when messages vanish at random: then only safety can be promised."""

    def __init__(self, fleet: Fleet) -> None:
        self.strict = True
        self.faultless = True
        #: Copies of it that may run on, because their gateway died.
        self.poisons_left = 0
        #: Identities of the workers that the prompt that kills has killed, and its attempts that
        #: killed some.
        self._poisoned: set[str] = set()
        self._poisonings: set[str] = set()
        #: Identities of those that no prompt killed.
        self.killed_by_chance: set[str] = set()
        self._fleet = fleet
        self._clock: Clock = fleet.clock
        self._idle_since: dict[tuple[str, str], float] = {}
        self._zombies: dict[tuple[str, str], float] = {}

    # ------------------------------------------------------------ after single events

    def spoke(self, gateway: GatewayProcess) -> None:
        """A gateway took tokens: not from a worker that another incarnation has replaced."""
        speaker = self._fleet.processes[gateway.speaker]
        newest = self._fleet.newest[speaker.name]
        if newest is speaker or not isinstance(newest, WorkerProcess):
            return
        for router in self._fleet.routers():
            fenced = speaker.identity in router.core.shared.fenced
            calm = all(p.calm(CALM_SECONDS) for p in (router, gateway, speaker, newest))
            if fenced and calm and self.strict:
                self._clock.violate(f"{gateway.name} took tokens of fenced {speaker.identity}")

    def granted(self, worker: WorkerProcess, held: Held) -> None:
        """KV given to a worker is never more than may be granted of it, and what was promised to a
        request is what its engine will need for it, to the block of each group. A stream whose
        budget is over takes a step more until the answer comes; `BudgetJudge` looks at that."""
        if not self.strict:
            return
        capacity = self._fleet.capacity
        limit, engine = int(capacity.kv_blocks * GRANT), worker.engine
        blocks = sum(min(engine.blocks_of(h), self._promised(h)) for h in engine.held.values())
        calm = worker.calm(CALM_SECONDS) and self._fleet.routers_calm(CALM_SECONDS)
        if blocks > limit and calm:
            self._clock.violate(f"{worker.name} was given {blocks} blocks of KV, {limit} at most")
        request = held.request
        for router in self._fleet.routers():
            row = router.core.shared.worker(worker.identity)
            tokens = row.held.get((request.request_id, request.attempt)) if row else None
            if row is None or tokens is None:
                continue
            promised, slack = tokens // capacity.block_tokens, len(capacity.kv_groups)
            needed = self._needed(router, held)
            if not needed <= promised <= needed + slack:
                self._clock.violate(
                    f"{router.name} promised {request.key} {promised} blocks of {worker.name}, "
                    f"which needs {needed}"
                )

    def _promised(self, held: Held) -> int:
        """Blocks, by the router that promises most."""
        needed = (self._needed(router, held) for router in self._fleet.routers())
        return max(needed, default=held.blocks)

    def _needed(self, router: RouterProcess, held: Held) -> int:
        """Blocks: of a decode worker for as much as its budget allows."""
        request, capacity = held.request, self._fleet.capacity
        attempt = router.core.shared.attempt((request.request_id, request.attempt))
        part = attempt.request.kv_tokens if attempt is not None else 0
        if not part or request.role is Role.PREFILL:
            return held.blocks
        return blocks_held(capacity.kv_groups or (FULL,), part)

    def _may_wait(self, client: Client) -> bool:
        late = self._clock.now - QUEUE_SECONDS - LATE_SECONDS
        return any(
            attempt.request_id == client.spec.request_id
            and attempt.state is AttemptState.QUEUED
            and attempt.received >= late
            for router in self._fleet.routers()
            for attempt in router.core.shared.attempts()
        )

    def given(self, worker: WorkerProcess, request_id: str) -> None:
        """A worker was given a request: one that asks for the model that it serves."""
        client = self._client(request_id)
        if client is not None and client.spec.model != worker.model:
            self._clock.violate(f"{worker.name} of {worker.model} was given {request_id}")

    def failed(self, gateway: GatewayProcess, client: Client, error: BatonError) -> None:
        """The longest wait is the last resort: once all is calm somebody answers before, if only
        with a refusal, unless messages vanish. A request that no worker can take may wait in a
        router's queue, and one that was refused for a while may just have got its place."""
        last_resort = any(sentence in error.message for sentence in LONGEST_WAIT)
        if not last_resort or self._may_wait(client):
            return
        waited = self._clock.now - client.silent_since
        calm = gateway.calm(ANSWER_SECONDS) and self._fleet.routers_calm(ANSWER_SECONDS)
        calm = calm and self._clock.now - client.answered_at >= ANSWER_SECONDS
        poison = client.spec.prompt_ids[0] == POISON  # it kills those who would answer
        if waited >= TOKEN_WAIT_MS / 1000 and calm and self.strict and not poison:
            self._clock.violate(f"{client.spec.request_id} was only ended by its longest wait")

    def poisoned(self, worker: str, attempt: str) -> None:
        """A worker computed the prompt that kills, and is about to die. Whatever else dies: it is
        sent to workers three times at most, and once for each copy of it that ran beside another
        one. One that stood still since it got the first of these attempts dies of it when it goes
        on, be the prompt in quarantine by then."""
        self._poisoned.add(worker)
        self._poisonings.add(attempt)
        if len(self._poisonings) > POISON_ATTEMPTS_MAX + self.poisons_left:
            self._clock.violate(f"poison killed workers in {len(self._poisonings)} attempts")

    def quarantined(self, request_id: str) -> None:
        """A prompt that kills nobody is only refused for workers that died under it: by chance, at
        least the one that it was tried on, or in the company of the prompt that kills."""
        for router in self._fleet.routers():
            for tables in router.core.shared.models.values():
                for row in tables.quarantine.rows(self._clock.now):
                    died = self.killed_by_chance | self._poisoned
                    chance = died >= set(row.workers) and not self._poisoned >= set(row.workers)
                    if row.request_id == request_id and chance:
                        return
        self._clock.violate(f"{request_id} is quarantined, and harmless")

    def lease_expired(self, worker: Process, key: str) -> None:
        """A lease is the last resort: somebody frees KV before."""
        calm = worker.calm(LEASE_SECONDS) and self._fleet.routers_calm(LEASE_SECONDS)
        if calm and self.strict:
            self._clock.violate(f"{worker.name} kept the KV of {key} until its lease ran out")

    def killed(self, victim: Process) -> None:
        """A crash is found by its closed connection, not by its silence."""
        if not isinstance(victim, WorkerProcess) or not self.strict:
            return
        for router in self._fleet.routers():
            worker = router.core.shared.worker(victim.identity)
            if worker is not None and worker.state is not WorkerState.GONE:
                self._clock.after(FOUND_SECONDS, lambda r=router: self._found(r, victim))  # type: ignore[misc]
        for gateway in self._fleet.gateways():
            self._clock.after(FOUND_SECONDS, lambda g=gateway: self._dropped(g, victim))  # type: ignore[misc]

    def _found(self, router: RouterProcess, victim: Process) -> None:
        worker = router.core.shared.worker(victim.identity)
        if worker is None or not router.calm(FOUND_SECONDS):
            return
        if worker.state is not WorkerState.GONE:
            self._clock.violate(f"{router.name} has not found the death of {victim.identity}")
        if worker.reason.startswith("silent"):
            self._clock.violate(f"the death of {victim.identity} was found by the watchdog")

    def _dropped(self, gateway: GatewayProcess, victim: Process) -> None:
        """A router that hung may place on the dead in its first moment."""
        calm = gateway.calm(FOUND_SECONDS) and self._fleet.routers_calm(FOUND_SECONDS)
        if calm and gateway.waits_for(victim.identity):
            self._clock.violate(f"{gateway.name} still waits for dead {victim.identity}")

    # ------------------------------------------------------------ five times a second

    def pulse(self) -> None:
        self._judge_waits()
        if not self.strict:
            return
        for router in self._fleet.routers():
            for tables in router.core.shared.models.values():
                self._judge_idle(router, tables)
        self._judge_zombies()
        if self._fleet.budgets:
            self._fleet.budget_judge.pulse()

    def _judge_waits(self) -> None:
        """Nobody waits for longer than is configured, even where messages vanish."""
        now = self._clock.now
        for gateway in self._fleet.gateways():
            limit = now - TOKEN_WAIT_MS / 1000 - LATE_SECONDS
            for client in gateway.clients.values() if self._awake(gateway) else ():
                if not client.end and client.silent_since < limit:
                    self._clock.violate(f"{client.spec.request_id} waits without an answer")
        for router in self._fleet.routers():
            limit = now - QUEUE_SECONDS - LATE_SECONDS
            for attempt in router.core.shared.attempts() if self._awake(router) else ():
                if attempt.state is AttemptState.QUEUED and attempt.received < limit:
                    self._clock.violate(f"{attempt.key} waits in the queue of {router.name}")

    @staticmethod
    def _awake(process: Process) -> bool:
        return process.calm(LATE_SECONDS)

    def _judge_idle(self, router: RouterProcess, tables: Tables) -> None:
        """Nobody waits while a decode worker of its model that is not too slow for it, and a
        prefill worker if there are any, does nothing at all."""
        since, who = self._idle_since, (router.identity, tables.model)
        if not self._waits_in_vain(router, tables):
            since.pop(who, None)
        elif self._clock.now - since.setdefault(who, self._clock.now) > IDLE_SECONDS:
            key = tables.waiting.head().key
            self._clock.violate(f"{key} waits at {router.name} while workers do nothing")

    def _waits_in_vain(self, router: RouterProcess, tables: Tables) -> bool:
        if not len(tables.waiting) or not router.calm(CALM_SECONDS):
            return False
        quarantine, head = tables.quarantine, tables.waiting.head()
        accused = quarantine.is_suspect(head.digest) and not quarantine.may_be_tried(head.digest)
        if head.waits_for is WaitFor.TRIAL and (quarantine.trials.rows or accused):
            return False
        lowest = head.priority is preempt.LOWEST
        able = [w for w in tables.workers.values() if w.ready and (lowest or not w.speed.patient)]
        ready = [w for w in able if self._idle(w)]
        roles = {part for w in ready for part in w.role.parts}
        prefills = any(w.ready and w.role.prefills for w in tables.workers.values())
        return Role.DECODE in roles and (Role.PREFILL in roles or not prefills)

    def _idle(self, worker: Worker) -> bool:
        process = self._fleet.processes[worker.identity]
        free = (
            not worker.held and not worker.preexisting_kv_tokens and not worker.preexisting_requests
        )
        return free and process.calm(CALM_SECONDS)

    def _judge_zombies(self) -> None:
        """No engine works on what its gateway has finished with."""
        seen: dict[tuple[str, str], float] = {}
        for worker in self._fleet.workers():
            for key, held in worker.engine.held.items():
                client = self._client(held.request.request_id)
                if client is None or client.over_at is None:
                    continue
                identity = (worker.identity, key)
                seen[identity] = since = self._zombies.get(identity, self._clock.now)
                if self._clock.now - since > ZOMBIE_SECONDS and not self._excused(worker, client):
                    self._clock.violate(f"{worker.name} works on {key}, which is {client.end}")
        self._zombies = seen

    def _excused(self, worker: WorkerProcess, client: Client) -> bool:
        """Abort may have been lost with a connection. D hears it from the gateway too; for P the
        lease is what ends it."""
        fleet = self._fleet
        calm = LEASE_SECONDS if worker.role.prefills else CALM_SECONDS
        gateway = fleet.processes[client.spec.request_id.split("/", maxsplit=1)[0]]
        everybody_calm = worker.calm(calm) and gateway.calm(CALM_SECONDS)
        quiet = everybody_calm and fleet.routers_calm(CALM_SECONDS) and not fleet.network.blocked
        return not quiet

    def _client(self, request_id: str) -> Client | None:
        gateway = self._fleet.processes[request_id.split("/", maxsplit=1)[0]]
        assert isinstance(gateway, GatewayProcess)
        return gateway.clients.get(request_id)

    # ------------------------------------------------------------ at the end

    def verdict(self) -> None:
        """After all has settled."""
        self._judge_amplification()
        for gateway in self._fleet.gateways():
            if gateway.alive:
                self._judge_gateway(gateway)
        if not self.strict:
            return
        for router in self._fleet.routers():
            self._judge_router(router)
        for worker in self._fleet.workers():
            if self._fleet.twins(worker):
                self._clock.violate(f"two processes are {worker.name}")
            if worker.engine.held:
                self._clock.violate(f"{worker.name} still holds {list(worker.engine.held)}")
            if worker.decode_engine.kept:
                self._clock.violate(f"{worker.name} still keeps {list(worker.decode_engine.kept)}")
            if worker.core.active:
                self._clock.violate(f"the core of {worker.name} still holds {worker.core.active}")

    def _judge_gateway(self, gateway: GatewayProcess) -> None:
        for request_id, client in gateway.clients.items():
            if not client.end:
                self._clock.violate(f"{request_id} has no end")
            if self.faultless and client.end not in FAULTLESS and not self._waited(client):
                self._clock.violate(f"{request_id} {client.end}, though nothing went wrong")
        if gateway.core.active:
            self._clock.violate(f"the core of {gateway.name} still holds {gateway.core.active}")

    def _waited(self, client: Client) -> bool:
        """Whether it was parked, and then waited for as long as anything may."""
        waited = (client.over_at or 0.0) - client.silent_since
        return bool(self._fleet.budgets) and waited >= QUEUE_SECONDS

    def _judge_router(self, router: RouterProcess) -> None:
        shared = router.core.shared
        left = [(attempt.key, attempt.state.value) for attempt in shared.attempts()]
        if left or router.core.queued:
            self._clock.violate(f"{router.name} still has {left}")
        for worker in shared.workers():
            if worker.held_tokens or worker.queued_tokens:
                self._clock.violate(f"{worker.name} still holds credits at {router.name}")

    def _judge_amplification(self) -> None:
        """No attempt is given to a worker twice by one router, and further attempts keep to the
        retry budget, save those of streams that the router moves or parks."""
        dispatches = self._fleet.tally.dispatches
        requests = {request_id for request_id, _ in dispatches}
        parked = self._fleet.moved().get("room parked", 0)
        attempts = len(dispatches) - len(requests) - self._fleet.tally.moves - parked
        largest = self._fleet.capacity.requests_max(self._fleet.slots_ahead_max)
        each_model = max(RETRY_BURST, largest) + RETRY_PER_SECOND * self._clock.now
        budget = RETRY_SHARE * self._fleet.submitted() + each_model * len(self._fleet.names)
        if attempts > budget and not self._fleet.router_restarted():
            self._clock.violate(f"{attempts} further attempts of {len(requests)} requests")
        if self._fleet.routers_undisturbed() and not self._fleet.network.twice:
            twice = [key for key, times in dispatches.items() if times > 1]
            if twice:
                self._clock.violate(f"{twice[0]} was dispatched {dispatches[twice[0]]} times")
