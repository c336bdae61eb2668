"""Modelled workers: how long the engine would take, and the messages it would send.

A prefill worker computes one prompt after the other. A decode worker batches continuously; instead
of one event per step, its progress is a clock of its own that advances by one per step, so that a
thousand tokens cost two events and the inter-token latency is still exact.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from common.messages import (
    WIRE_VERSION,
    Abort,
    Capacity,
    Decode,
    DecodeStarted,
    Ended,
    Hello,
    KvReport,
    Load,
    Message,
    Prefill,
    PrefillEnded,
    Role,
)
from loadtest.capacity.profile import Profile
from loadtest.capacity.timeline import Timeline
from loadtest.capacity.workload import Arrival

Key = tuple[str, int]


@dataclass(slots=True)
class Job:
    """One try on a worker. `ready`: when D had its KV; `first`: when it made the first token."""

    key: Key
    ask: Arrival
    arrived: float
    ready: float = 0.0
    first: float = 0.0
    remote: bool = False


class Outlet:
    """What a worker needs of the fleet around it."""

    def __init__(
        self,
        say: Callable[[str, Message], None],
        kv_ready: Callable[[Key, str], None],
        streamed: Callable[[Job, bool], None],
    ) -> None:
        self.say = say
        self.kv_ready = kv_ready
        self.streamed = streamed


class ModelWorker:
    """`busy`: seconds in which the engine worked."""

    role: Role

    def __init__(self, name: str, profile: Profile, time: Timeline, outlet: Outlet) -> None:
        self.name = name
        self.identity = f"{name}|1"
        self.busy = 0.0
        self.jobs: dict[Key, Job] = {}
        self._profile = profile
        self._time = time
        self._outlet = outlet

    def hello(self) -> Hello:
        profile = self._profile
        return Hello(
            wire_version=WIRE_VERSION,
            role=self.role,
            name=self.name,
            incarnation="1",
            fingerprint="model",
            model="model",
            kv_address=f"{self.name}:1",
            capacity=Capacity(
                block_tokens=profile.block_tokens,
                kv_blocks=profile.kv_blocks,
                kv_block_bytes=profile.kv_bytes_per_token * profile.block_tokens,
                max_model_len=profile.max_model_len,
                max_num_seqs=profile.max_num_seqs,
            ),
        )

    def load(self) -> Load:
        tokens = sum(job.ask.prompt + job.ask.output for job in self.jobs.values())
        total = self._profile.kv_blocks * self._profile.block_tokens
        return Load(running=len(self.jobs), kv_used=min(1.0, tokens / total))

    def _say(self, message: Message) -> None:
        self._outlet.say(self.identity, message)


class PrefillModel(ModelWorker):
    role = Role.PREFILL

    def __init__(self, name: str, profile: Profile, time: Timeline, outlet: Outlet) -> None:
        super().__init__(name, profile, time, outlet)
        self._queue: deque[Job] = deque()
        self._computing = False
        self._link_free = 0.0

    def prefill(self, message: Prefill, ask: Arrival) -> None:
        job = Job((message.request_id, message.attempt), ask, self._time.now)
        self.jobs[job.key] = job
        self._queue.append(job)
        if not self._computing:
            self._next()

    def abort(self, message: Abort) -> None:
        self.jobs.pop((message.request_id, message.attempt), None)

    def _next(self) -> None:
        self._computing = False
        while self._queue and not self._computing:
            job = self._queue.popleft()
            if job.key in self.jobs:
                self._compute(job)

    def _compute(self, job: Job) -> None:
        self._computing = True
        took, began = self._profile.prefill_seconds(job.ask.prompt), self._time.now
        self.busy += took
        self._time.after(took, lambda: self._computed(job, began))

    def _computed(self, job: Job, began: float) -> None:
        now, profile = self._time.now, self._profile
        if self.jobs.pop(job.key, None) is not None:
            elapsed = (now - job.arrived) * 1000
            self._say(PrefillEnded(request_id=job.key[0], attempt=job.key[1], elapsed_ms=elapsed))
            last = profile.transfer_seconds(min(job.ask.prompt, profile.chunk_tokens))
            sending = max(began, self._link_free) + profile.transfer_seconds(job.ask.prompt)
            self._link_free = max(sending, now + last)
            there = self._link_free + profile.handoff_ms / 1000
            self._time.at(there, lambda: self._outlet.kv_ready(job.key, self.identity))
        self._next()


class DecodeModel(ModelWorker):
    """`itl`: tokens by the step time (ms, rounded to 0.1) they were made at. `batch_seconds`: the
    integral of the batch over time."""

    role = Role.DECODE

    def __init__(self, name: str, profile: Profile, time: Timeline, outlet: Outlet) -> None:
        super().__init__(name, profile, time, outlet)
        self.itl: dict[float, float] = {}
        self.batch_seconds = 0.0
        self._batch = 0
        self._steps = 0.0
        self._since = 0.0
        self._goals: list[tuple[float, int, Job]] = []
        self._order = 0
        self._prompts: deque[tuple[Job, list[float]]] = deque()
        self._plan = 0

    def decode(self, message: Decode, ask: Arrival) -> None:
        job = Job((message.request_id, message.attempt), ask, self._time.now)
        job.remote = message.ticket is not None
        self.jobs[job.key] = job
        if not job.remote:
            self._advance()
            self._prompts.append((job, [float(ask.prompt)]))
            self._replan()

    def kv_ready(self, key: Key) -> None:
        job = self.jobs.get(key)
        if job is not None and not job.ready:
            self._advance()
            self._join(job)
            self._replan()

    def abort(self, message: Abort) -> None:
        job = self.jobs.pop((message.request_id, message.attempt), None)
        if job is None:
            return
        self._advance()
        self._batch -= bool(job.ready)
        self._replan()
        self._say(Ended(request_id=job.key[0], attempt=job.key[1], error="cancelled"))

    def settle(self) -> None:
        """Brings `busy`, `itl` and `batch_seconds` up to now."""
        self._advance()

    def _join(self, job: Job) -> None:
        job.ready = self._time.now
        self._batch += 1
        self._goal(job, 1)

    def _goal(self, job: Job, steps: int) -> None:
        self._order += 1
        heapq.heappush(self._goals, (self._steps + steps, self._order, job))

    def _step(self) -> float:
        """Seconds of one step as things are."""
        step = self._profile.step_seconds(self._batch) if self._batch else 0.0
        if self._prompts:
            step += self._profile.chunk_seconds(self._chunk(), self._prompts[0][0].ask.prompt)
        return step

    def _chunk(self) -> float:
        return max(1.0, min(self._profile.chunk_tokens, self._prompts[0][1][0]))

    def _advance(self) -> None:
        passed, self._since = self._time.now - self._since, self._time.now
        step = self._step()
        if not step or not passed:
            return
        steps = passed / step
        self.busy += passed
        self.batch_seconds += passed * self._batch
        if self._batch:
            self._steps += steps
            slot = round(step * 1000, 1)
            self.itl[slot] = self.itl.get(slot, 0.0) + steps * self._batch
        if self._prompts:
            self._prompts[0][1][0] -= steps * self._chunk()

    def _replan(self) -> None:
        """Schedules the next thing that changes; an earlier plan is void."""
        self._plan += 1
        plan, step = self._plan, self._step()
        while self._prompts and self._prompts[0][0].key not in self.jobs:
            self._prompts.popleft()
        waits: list[float] = []
        if self._goals:
            waits.append((self._goals[0][0] - self._steps) * step)
        if self._prompts:
            waits.append(self._prompts[0][1][0] / self._chunk() * step)
        if waits:
            self._time.after(max(0.0, min(waits)), lambda: self._due(plan))

    def _due(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        if self._prompts and self._prompts[0][1][0] <= 1e-6:
            job, _ = self._prompts.popleft()
            if job.key in self.jobs:
                self._join(job)
        while self._goals and self._goals[0][0] <= self._steps + 1e-9:
            job = heapq.heappop(self._goals)[2]
            if self.jobs.get(job.key) is job:
                self._reached(job)
        self._replan()

    def _reached(self, job: Job) -> None:
        request_id, attempt = job.key
        now = self._time.now
        if not job.first:
            job.first = now
            self._outlet.streamed(job, False)
            elapsed = (now - job.arrived) * 1000
            kv = self._report(job) if job.remote else None
            self._say(
                DecodeStarted(request_id=request_id, attempt=attempt, elapsed_ms=elapsed, kv=kv)
            )
            if job.ask.output > 1:
                self._goal(job, job.ask.output - 1)
                return
        del self.jobs[job.key]
        self._batch -= 1
        self._outlet.streamed(job, True)
        self._say(
            Ended(
                request_id=request_id,
                attempt=attempt,
                finish_reason="length",
                completion_tokens=job.ask.output,
                decode_ms=(now - job.first) * 1000,
            )
        )

    def _report(self, job: Job) -> KvReport:
        profile = self._profile
        size = job.ask.prompt * profile.kv_bytes_per_token
        return KvReport(
            blocks=-(-job.ask.prompt // profile.block_tokens),
            messages=1,
            payload_bytes=size,
            wire_bytes=size,
            wait_ms=(job.ready - job.arrived) * 1000,
            transfer_ms=profile.transfer_seconds(job.ask.prompt) * 1000,
        )
