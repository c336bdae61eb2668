"""The fleet in virtual time: the production cores, modelled engines, one gateway, no faults.

`services.router.core` and the cores of the workers decide; this file carries their messages. Each
message takes `control_ms`, as do the tokens to the gateway.
"""

from __future__ import annotations

import math
import random
import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from common.identity import AttemptKey
from common.messages import (
    WIRE_VERSION,
    Abort,
    Beat,
    Become,
    Decode,
    Failed,
    Hello,
    Message,
    Placed,
    Prefill,
    Refused,
    Role,
    Submit,
)
from common.prefix import HASH_BYTES, HASHES_MAX
from loadtest.capacity.batch import BatchLoad, BatchShape
from loadtest.capacity.engine import Job
from loadtest.capacity.profile import Profile
from loadtest.capacity.prompt_parts import block_hashes
from loadtest.capacity.report import ClientSample, Cost, Report, Slo, quantiles, weighted
from loadtest.capacity.roles import RoleModel
from loadtest.capacity.virtual_time import VirtualTime
from loadtest.capacity.workers import DecodeModel, FleetPort, ModelWorker, PrefillModel, Request
from loadtest.capacity.workload import Arrival
from services.router.core import Core
from services.router.events import Event, Note, Received, RoleOrdered, Send, Tick
from services.router.settings import Settings

GATEWAY = "g0|1"
TICK_SECONDS = 0.1
BODY = b"\0"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet and its load."""

    profile: Profile
    #: Workers of each model.
    prefills: int
    decodes: int
    arrivals: Iterable[Arrival]
    #: Duration of the measured time.
    seconds: float
    #: Seconds before the measured time.
    warmup: float = 0.0
    #: Seconds after the measured time in which running requests are followed.
    drain_seconds: float = 60.0
    slo: Slo = field(default_factory=Slo)
    settings: Settings = field(default_factory=Settings)
    #: How often a refused client tries again, after `Retry-After` in whole seconds.
    retries: int = 0
    #: Share of the clients that ask again.
    obey: float = 1.0
    #: Interval of worker reports; longer than in production, so that thousands of them are cheap.
    beat_seconds: float = 0.5
    #: Names of the models, of one profile; the settings have the same.
    models: tuple[str, ...] = ("model",)
    #: Whether workers may change their role. If so, `prefills` and `decodes` are what they have at
    #: first, and utilizations are shares of all workers.
    roles: bool = False
    #: Orders of somebody who knows the load beforehand: how many workers should prefill from an
    #: instant on, in seconds. Each lets one worker change its role.
    orders: Sequence[tuple[float, int]] = ()
    #: Of the workers of a role, where it is not `profile`.
    profiles: Mapping[Role, Profile] = field(default_factory=dict)
    #: How many times as fast as the profile the workers of a role are, in turn.
    speeds: Mapping[Role, Sequence[float]] = field(default_factory=dict)
    #: A batch that runs beside the arrivals; it is no client, so no figure but its own has it.
    batch: BatchShape | None = None


def run(scenario: Scenario) -> Report:
    return Fleet(scenario).run()


class Fleet:
    """One simulation."""

    def __init__(self, scenario: Scenario) -> None:
        #: One for each client, in order of arrival.
        self.samples: list[ClientSample] = []
        self.core = Core(scenario.settings, lambda: bytes(16), random.Random(1).random, 0.0)
        self.router_events = 0
        #: CPU time inside the production core, by cause.
        self.router_seconds = dict.fromkeys(Cost, 0.0)
        self._scenario = scenario
        self._time = VirtualTime()
        self._ids = count()
        self._open: dict[str, ClientSample] = {}
        self._requests: dict[str, Request] = {}
        self._delay = scenario.profile.control_ms / 1000
        self.batch = BatchLoad(scenario.batch, self._time, self._submit) if scenario.batch else None
        self._second_tries = [0, 0]
        self._dice = random.Random(0)
        self._prefills: dict[str, PrefillModel] = {}
        self._decodes: dict[str, DecodeModel] = {}
        #: All workers, by identity.
        self.workers: dict[str, ModelWorker | RoleModel] = {}
        #: Workers that prefill, since an instant: what it was at first, and after each change.
        self.splits: list[tuple[float, int]] = [(0.0, scenario.prefills)]
        #: What the router said of roles: when, and the sentence.
        self.told: list[tuple[float, str]] = []
        for at, model in enumerate(scenario.models):
            for number in range(scenario.prefills):
                self._add_worker(Role.PREFILL, at * scenario.prefills + number, model)
            for number in range(scenario.decodes):
                self._add_worker(Role.DECODE, at * scenario.decodes + number, model)

    def _add_worker(self, role: Role, number: int, model: str) -> None:
        port = FleetPort(self._to_router, self._to_client, self._request_kv, self._deliver_kv)
        speeds = self._scenario.speeds.get(role) or (1.0,)
        profile = self._scenario.profiles.get(role, self._scenario.profile)
        profile = profile.at_speed(speeds[number % len(speeds)])
        parts = (f"{role.value[0]}{number}", profile, self._time, port)
        both, settings = self._scenario.roles, self._scenario.settings
        models: list[PrefillModel | DecodeModel] = []
        if both or role is Role.PREFILL:
            prefill = PrefillModel(*parts, model=model)
            self._prefills[prefill.identity] = prefill
            models.append(prefill)
        if both or role is Role.DECODE:
            decode = DecodeModel(*parts, settings, model=model)
            self._decodes[decode.identity] = decode
            models.append(decode)
        worker: ModelWorker | RoleModel = models[0]
        if both:
            worker = RoleModel(models, role, self._time, self._changed_role)
        self.workers[worker.identity] = worker

    def run(self) -> Report:
        began = time.process_time()
        self._join()
        self._tick()
        for instant, prefills in self._scenario.orders:
            self._time.at(instant, partial(self._order, prefills))
        if self.batch is not None:
            self.batch.start()
        arrivals = iter(self._scenario.arrivals)
        self._next_arrival(arrivals)
        end = self._scenario.warmup + self._scenario.seconds
        self._time.run(end)
        for worker in (*self._prefills.values(), *self._decodes.values()):
            worker.engine.settle()
        busy = self._busy()
        self._time.run(end + self._scenario.drain_seconds, lambda: not self._open)
        return self._report(busy, end, time.process_time() - began)

    # ------------------------------------------------------------ messages

    def _join(self) -> None:
        hello = Hello(
            wire_version=WIRE_VERSION,
            role=Role.GATEWAY,
            name="g0",
            incarnation="1",
            stream_endpoint="ipc://g0",
        )
        self._feed(Received(GATEWAY, hello))
        for worker in self.workers.values():
            self._feed(Received(worker.identity, worker.hello()), Cost.JOIN)
        self._beats(Cost.JOIN)
        self._time.after(self._scenario.beat_seconds, self._beat)

    def _beats(self, cost: Cost) -> None:
        self._feed(Received(GATEWAY, Beat()), cost)
        for worker in self.workers.values():
            beat = Beat(load=worker.load(), becomes=worker.becomes)
            self._feed(Received(worker.identity, beat), cost)

    def _beat(self) -> None:
        self._beats(Cost.BEAT)
        self._time.after(self._scenario.beat_seconds, self._beat)

    def _tick(self) -> None:
        self._feed(Tick(), Cost.BEAT)
        measured = 0 <= self._time.now - self._scenario.warmup <= self._scenario.seconds
        if self.batch is not None and measured:
            self.batch.sample(self._decodes.values())
        self._time.after(TICK_SECONDS, self._tick)

    def _to_router(self, peer: str, message: Message) -> None:
        self._time.after(
            self._delay,
            lambda: self._feed(Received(peer, message)),  # type: ignore[arg-type]
        )

    def _feed(self, event: Event, cost: Cost = Cost.REQUEST) -> None:
        self.router_events += 1
        began = time.thread_time()
        actions = self.core.handle(event, self._time.now)
        self.router_seconds[cost] += time.thread_time() - began
        for action in actions:
            if isinstance(action, Send):
                self._carry(action.peer, action.message)
            elif isinstance(action, Note) and action.event.startswith(("balance.", "role.")):
                self.told.append((self._time.now, action.sentence))

    def _carry(self, peer: str, message: Message) -> None:
        if peer != GATEWAY:
            if isinstance(message, Prefill | Decode | Abort | Become):
                self._time.after(self._delay, lambda: self._to_worker(peer, message))
        elif isinstance(message, Refused | Failed):
            self._time.after(self._delay, lambda: self._refused(message))
        elif isinstance(message, Placed):
            sample = self._open[message.request_id]
            if self.batch is not None:
                self.batch.placed(sample)
            sample.placed = True

    def _to_worker(self, peer: str, message: Prefill | Decode | Abort | Become) -> None:
        worker = self.workers[peer]
        if isinstance(message, Abort):
            worker.abort(message)
        elif isinstance(message, Become):
            assert isinstance(worker, RoleModel)
            worker.order(message)
        elif (request := self._requests.get(message.request_id)) is not None:
            worker.dispatch(message, request)

    def _request_kv(self, key: AttemptKey, prefill: str, elsewhere: int) -> None:
        self._prefills[prefill].request_kv(key, elsewhere)

    def _deliver_kv(self, key: AttemptKey, decode: str) -> None:
        self._decodes[decode].deliver_kv(key)

    # ------------------------------------------------------------ roles

    def _order(self, prefills: int) -> None:
        """The worker that is soonest empty takes the role that is lacking."""
        roles = [worker.becomes or worker.role for worker in self.workers.values()]
        now, lacking = roles.count(Role.PREFILL), Role.PREFILL
        if now == prefills:
            return
        if now > prefills:
            lacking = Role.DECODE
        rows = [w for w in self.core.shared.workers() if w.ready and w.role is not lacking]
        row = min(rows, key=lambda row: (len(row.held), row.name))
        self._feed(RoleOrdered(row.identity, lacking))

    def _changed_role(self, worker: RoleModel) -> None:
        self._to_router(worker.identity, worker.hello())
        roles = [other.role for other in self.workers.values()]
        self.splits.append((self._time.now, roles.count(Role.PREFILL)))

    # ------------------------------------------------------------ clients

    def _next_arrival(self, arrivals: Iterator[Arrival]) -> None:
        arrival = next(arrivals, None)
        if arrival is not None:
            self._time.at(arrival.at, lambda: self._arrive(arrival, arrivals))

    def _arrive(self, arrival: Arrival, arrivals: Iterator[Arrival]) -> None:
        sample = ClientSample(arrival, self._time.now)
        self.samples.append(sample)
        self._submit(sample)
        self._next_arrival(arrivals)

    def _submit(self, sample: ClientSample) -> None:
        arrival, profile = sample.arrival, self._scenario.profile
        request_id = f"r{next(self._ids)}"
        hashes = block_hashes(arrival.parts, profile.block_tokens) if profile.prefix_cache else b""
        self._open[request_id] = sample
        self._requests[request_id] = Request(arrival, hashes)
        submit = Submit(
            request_id=request_id,
            attempt=1,
            model=arrival.model,
            prompt_tokens=arrival.prompt,
            max_tokens=arrival.max_tokens,
            deadline_ms=arrival.deadline_ms,
            priority=arrival.priority,
            tenant=arrival.tenant,
            key_id=arrival.tenant,
            prefix_hashes=hashes[: HASHES_MAX * HASH_BYTES],
        )
        self._time.after(self._delay, lambda: self._feed(Received(GATEWAY, submit, BODY)))

    def _refused(self, message: Refused | Failed) -> None:
        sample = self._open.pop(message.request_id)
        self._requests.pop(message.request_id)
        sample.refused = message.code
        if self.batch is not None:
            self.batch.refused(sample)
        wait = message.retry_after_ms if isinstance(message, Refused) else 0
        sample.waits_ms.append(wait)
        if sample.tries == 2:
            self._second_tries[1] += 1
        if wait and sample.tries <= self._scenario.retries and self._obeys(sample):
            seconds = math.ceil(wait / 1000)
            sample.tries += 1
            sample.refused, sample.asked = "", self._time.now + seconds
            self._time.after(seconds, lambda: self._submit(sample))

    def _obeys(self, sample: ClientSample) -> bool:
        return sample.tries > 1 or self._dice.random() < self._scenario.obey

    def _to_client(self, job: Job, done: bool) -> None:
        request_id = job.key[0]
        sample = self._open.get(request_id)
        if sample is None:
            return
        if not done:
            sample.first = self._time.now + self._delay
            sample.beside = job.beside
            self._second_tries[0] += sample.tries == 2
            return
        sample.done = self._time.now + self._delay
        del self._open[request_id], self._requests[request_id]

    # ------------------------------------------------------------ judgement

    def _busy(self) -> tuple[float, float, float]:
        """Shares of the time so far: prefill, decode; and the mean batch of working engines."""
        span = max(self._time.now, 1e-9)
        decodes = [worker.engine for worker in self._decodes.values()]
        prefill = sum(worker.engine.busy for worker in self._prefills.values())
        decode = sum(engine.busy for engine in decodes)
        return (
            prefill / span / max(1, len(self._prefills)),
            decode / span / max(1, len(decodes)),
            sum(engine.batch_seconds for engine in decodes) / max(decode, 1e-9),
        )

    def _cached_share(self) -> float:
        workers = (*self._prefills.values(), *self._decodes.values())
        tokens = sum(worker.engine.prompt_tokens for worker in workers)
        return sum(worker.engine.cached_tokens for worker in workers) / max(1, tokens)

    def _report(self, busy: tuple[float, float, float], end: float, cpu: float) -> Report:
        scenario, samples = self._scenario, self.samples
        slo, warmup = scenario.slo, scenario.warmup
        started = [s for s in samples if s.first is not None and s.asked >= warmup]
        good = [s for s in samples if s.good(slo)]
        in_time = [s for s in good if s.done is not None and warmup <= s.done <= end]
        itl: dict[float, float] = {}
        for worker in self._decodes.values():
            for step, tokens in worker.engine.itl.items():
                itl[step] = itl.get(step, 0.0) + tokens
        codes = [s.refused for s in samples if s.refused]
        again, refused_again = self._second_tries
        return Report(
            requests=len(samples),
            placed=sum(s.placed for s in samples),
            ended=sum(s.done is not None for s in samples),
            refused={code: codes.count(code) for code in sorted(set(codes))},
            refused_without_wait=sum(0 in s.waits_ms for s in samples),
            next_try=again / (again + refused_again) if again + refused_again else None,
            ttft_ms=quantiles([(s.first - s.asked) * 1000 for s in started if s.first]),
            itl_ms=weighted(sorted(itl.items())),
            tpot_ms=quantiles(
                [
                    (s.done - s.first) * 1000 / max(1, s.arrival.output - 1)
                    for s in started
                    if s.done is not None and s.first is not None
                ]
            ),
            goodput_rps=len(in_time) / scenario.seconds,
            attainment=len([s for s in started if s.good(slo)]) / max(1, len(started)),
            prefill_utilization=busy[0],
            decode_utilization=busy[1],
            decode_batch=busy[2],
            cached_share=self._cached_share(),
            local_prefills=self.core.tables.counts.placed_local,
            virtual_seconds=self._time.now,
            router_events=self.router_events,
            router_seconds={str(cost): spent for cost, spent in self.router_seconds.items()},
            cpu_seconds=cpu,
            memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB,
        )
