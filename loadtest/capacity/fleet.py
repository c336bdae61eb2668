"""The fleet in virtual time: the production router core, one gateway, modelled workers, no faults.

Whoever decides here is `services.router.core`; this file only carries its messages. Each takes
`control_ms`, as do the tokens to the gateway.
"""

from __future__ import annotations

import enum
import math
import random
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from common.messages import (
    WIRE_VERSION,
    Abort,
    Beat,
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
from loadtest.capacity.engine import Job, Key
from loadtest.capacity.prefix import block_hashes
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import Report, Sample, Slo, quantiles, weighted
from loadtest.capacity.timeline import Timeline
from loadtest.capacity.workers import Asked, DecodeModel, Outlet, PrefillModel
from loadtest.capacity.workload import Arrival
from services.router.core import Core
from services.router.events import Event, Received, Send, Tick
from services.router.settings import Settings

GATEWAY = "g0|1"
TICK_SECONDS = 0.1
BODY = b"\0"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Scenario:
    """`seconds`: how long the measured time lasts; it begins `warmup` seconds after the first
    arrival may come. `drain_seconds`: how long what then still runs is followed. `retries`: how
    often a client that was refused asks again, after the wait that it read in a `Retry-After` of
    whole seconds; `obey` is the share of clients that do. `beat_seconds`: longer than in production
    keeps thousands of workers cheap."""

    profile: Profile
    prefills: int
    decodes: int
    arrivals: Iterable[Arrival]
    seconds: float
    warmup: float = 0.0
    drain_seconds: float = 60.0
    slo: Slo = field(default_factory=Slo)
    settings: Settings = field(default_factory=Settings)
    retries: int = 0
    obey: float = 1.0
    beat_seconds: float = 0.5


def run(scenario: Scenario) -> Report:
    return Fleet(scenario).run()


class Cost(enum.StrEnum):
    """What the router's CPU time goes to: workers that join, reports and ticks that come whether
    there is work or not, and requests."""

    JOIN = "join"
    BEAT = "beat"
    REQUEST = "request"


class Fleet:
    """`samples` of all clients, in order of arrival, for readers that want more than a Report.
    `router_seconds`: CPU time inside the production core."""

    def __init__(self, scenario: Scenario) -> None:
        self.samples: list[Sample] = []
        self.core = Core(scenario.settings, lambda: bytes(16), 0.0)
        self.router_events = 0
        self.router_seconds = dict.fromkeys(Cost, 0.0)
        self._scenario = scenario
        self._time = Timeline()
        self._ids = count()
        self._open: dict[str, Sample] = {}
        self._asked: dict[str, Asked] = {}
        self._delay = scenario.profile.control_ms / 1000
        self._second_tries = [0, 0]
        self._dice = random.Random(0)
        outlet = Outlet(self._say, self._kv_wanted, self._kv_ready, self._streamed)
        parts = (scenario.profile, self._time, outlet)
        self._prefills = {
            f"p{i}|1": PrefillModel(f"p{i}", *parts) for i in range(scenario.prefills)
        }
        self._decodes = {f"d{i}|1": DecodeModel(f"d{i}", *parts) for i in range(scenario.decodes)}
        self._takers: dict[Key, str] = {}

    def run(self) -> Report:
        began = time.process_time()
        self._join()
        self._tick()
        arrivals = iter(self._scenario.arrivals)
        self._next_arrival(arrivals)
        end = self._scenario.warmup + self._scenario.seconds
        self._time.run(end)
        for worker in [*self._prefills.values(), *self._decodes.values()]:
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
        for worker in [*self._prefills.values(), *self._decodes.values()]:
            self._feed(Received(worker.identity, worker.hello()), Cost.JOIN)
        self._beats(Cost.JOIN)
        self._time.after(self._scenario.beat_seconds, self._beat)

    def _beats(self, cost: Cost) -> None:
        self._feed(Received(GATEWAY, Beat()), cost)
        for worker in [*self._prefills.values(), *self._decodes.values()]:
            self._feed(Received(worker.identity, Beat(load=worker.load())), cost)

    def _beat(self) -> None:
        self._beats(Cost.BEAT)
        self._time.after(self._scenario.beat_seconds, self._beat)

    def _tick(self) -> None:
        self._feed(Tick(), Cost.BEAT)
        self._time.after(TICK_SECONDS, self._tick)

    def _say(self, peer: str, message: Message) -> None:
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

    def _carry(self, peer: str, message: Message) -> None:
        if peer != GATEWAY:
            if isinstance(message, Prefill | Decode | Abort):
                self._time.after(self._delay, lambda: self._to_worker(peer, message))
        elif isinstance(message, Refused | Failed):
            self._time.after(self._delay, lambda: self._refused(message))
        elif isinstance(message, Placed):
            self._open[message.request_id].placed = True

    def _to_worker(self, peer: str, message: Prefill | Decode | Abort) -> None:
        asked = self._asked.get(message.request_id)
        if isinstance(message, Abort):
            prefill = self._prefills.get(peer)
            (prefill or self._decodes[peer]).abort(message)
        elif asked is None:
            return
        elif isinstance(message, Prefill):
            ticket = message.ticket
            key = (message.request_id, message.attempt)
            self._takers[key] = f"{ticket.decode}|{ticket.decode_incarnation}"
            self._prefills[peer].prefill(message, asked)
        else:
            self._decodes[peer].decode(message, asked)

    def _kv_wanted(self, key: Key, prefill: str, elsewhere: int) -> None:
        self._prefills[prefill].kv_wanted(key, elsewhere)

    def _kv_ready(self, key: Key, _prefill: str) -> None:
        self._decodes[self._takers.pop(key)].kv_ready(key)

    # ------------------------------------------------------------ clients

    def _next_arrival(self, arrivals: Iterator[Arrival]) -> None:
        ask = next(arrivals, None)
        if ask is not None:
            self._time.at(ask.at, lambda: self._arrive(ask, arrivals))

    def _arrive(self, ask: Arrival, arrivals: Iterator[Arrival]) -> None:
        sample = Sample(ask, self._time.now)
        self.samples.append(sample)
        self._submit(sample)
        self._next_arrival(arrivals)

    def _submit(self, sample: Sample) -> None:
        ask, profile = sample.ask, self._scenario.profile
        request_id = f"r{next(self._ids)}"
        hashes = block_hashes(ask.parts, profile.block_tokens) if profile.prefix_cache else b""
        self._open[request_id] = sample
        self._asked[request_id] = Asked(ask, hashes)
        submit = Submit(
            request_id=request_id,
            attempt=1,
            prompt_tokens=ask.prompt,
            max_tokens=ask.max_tokens,
            deadline_ms=ask.deadline_ms,
            tenant=ask.tenant,
            key_id=ask.tenant,
            prefix_hashes=hashes[: HASHES_MAX * HASH_BYTES],
        )
        self._time.after(self._delay, lambda: self._feed(Received(GATEWAY, submit, BODY)))

    def _refused(self, message: Refused | Failed) -> None:
        sample = self._open.pop(message.request_id)
        self._asked.pop(message.request_id)
        sample.refused = message.code
        wait = message.retry_after_ms if isinstance(message, Refused) else 0
        sample.waits_ms.append(wait)
        if sample.tries == 2:
            self._second_tries[1] += 1
        if wait and sample.tries <= self._scenario.retries and self._obeys(sample):
            seconds = math.ceil(wait / 1000)
            sample.tries += 1
            sample.refused, sample.asked = "", self._time.now + seconds
            self._time.after(seconds, lambda: self._submit(sample))

    def _obeys(self, sample: Sample) -> bool:
        return sample.tries > 1 or self._dice.random() < self._scenario.obey

    def _streamed(self, job: Job, done: bool) -> None:
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
        del self._open[request_id], self._asked[request_id]

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
        workers = [*self._prefills.values(), *self._decodes.values()]
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
                    (s.done - s.first) * 1000 / max(1, s.ask.output - 1)
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
