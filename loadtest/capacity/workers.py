"""Modelled workers: the production cores over an engine whose durations are modelled.

`services.prefill.core` and `services.decode.core` decide and make all messages; `engine.Engine`
decides when a prompt is computed and when a stream has its tokens. This file carries events and
actions between them. A prefill worker's KV leaves over one link, transfer after transfer, without
the leading tokens that the decode worker's prefix cache has at dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import NamedTuple

from common import prefix
from common.blocks import blocks_for, kv_need
from common.engine.port import Batch, EngineRequest, Output, engine_key
from common.identity import AttemptKey, identity_of
from common.kv.messages import KvDone
from common.messages import (
    WIRE_VERSION,
    Abort,
    Capacity,
    Decode,
    Delta,
    FinishReason,
    Hello,
    KvReport,
    Load,
    Message,
    Prefill,
    RequestBody,
    Role,
    Sampling,
)
from common.worker.actions import (
    AbortInEngine,
    AddToEngine,
    Dispatched,
    Event,
    ToGateway,
    ToRouter,
)
from common.worker.roles import RoleCores
from loadtest.capacity.engine import Engine, Job
from loadtest.capacity.profile import Profile
from loadtest.capacity.virtual_time import VirtualTime
from loadtest.capacity.workload import Arrival
from services.decode.core import DecodeCore
from services.decode.grant_limit import grant_limit_of
from services.prefill.core import PrefillCore
from services.router.settings import Settings

INCARNATION = "1"
PROMPT_ID_BYTES = 4


class Request(NamedTuple):
    """An arrival with the hashes of its prompt."""

    arrival: Arrival
    #: The packed hashes of the prompt's whole blocks (`loadtest.capacity.prompt_parts`).
    hashes: bytes

    @property
    def body(self) -> RequestBody:
        """Only the number of prompt tokens has a meaning."""
        arrival = self.arrival
        sampling = Sampling(max_tokens=arrival.max_tokens)
        return RequestBody(prompt_ids=bytes(PROMPT_ID_BYTES * arrival.prompt), sampling=sampling)


class FleetPort(NamedTuple):
    """What a worker needs of the fleet around it."""

    #: Delivers a message of the worker with this identity to the router.
    to_router: Callable[[str, Message], None]
    #: Reports a job's first token (False) and its end (True) to the client.
    to_client: Callable[[Job, bool], None]
    #: A decode worker asks the prefill worker with this identity for KV, without so many tokens.
    request_kv: Callable[[AttemptKey, str, int], None]
    #: All KV has arrived at the decode worker with this identity.
    deliver_kv: Callable[[AttemptKey, str], None]


class ModelWorker:
    role: Role
    core: PrefillCore | DecodeCore | RoleCores
    #: The role that it takes once it holds nothing; such a worker has both (`roles.py`).
    becomes: Role | None = None

    def __init__(
        self,
        name: str,
        profile: Profile,
        time: VirtualTime,
        fleet: FleetPort,
        *,
        model: str = "model",
    ) -> None:
        self.name = name
        self.model = model
        self.identity = identity_of(name, INCARNATION)
        self.jobs: dict[AttemptKey, Job] = {}
        self.engine = Engine(profile, time, self._computed, self._reached)
        self.capacity = Capacity(
            block_tokens=profile.block_tokens,
            kv_blocks=profile.kv_blocks,
            kv_block_bytes=profile.kv_bytes_per_token * profile.block_tokens,
            kv_groups=profile.kv_groups,
            max_model_len=profile.max_model_len,
            max_num_seqs=profile.max_num_seqs,
        )
        self._profile = profile
        self._time = time
        self._fleet = fleet

    def hello(self) -> Hello:
        return Hello(
            wire_version=WIRE_VERSION,
            role=self.role,
            name=self.name,
            incarnation=INCARNATION,
            fingerprint=self.model,
            model=self.model,
            kv_address=f"{self.name}:1",
            capacity=self.capacity,
        )

    def load(self) -> Load:
        block, groups = self._profile.block_tokens, self._profile.kv_groups
        tokens = sum(
            kv_need(job.arrival.prompt + job.arrival.output, block, groups)
            for job in self.jobs.values()
        )
        return Load(
            running=len(self.jobs), kv_used=min(1.0, tokens / (self._profile.kv_blocks * block))
        )

    def dispatch(self, message: Prefill | Decode, request: Request) -> None:
        for action in self.core.handle(Dispatched(message, request.body), self._time.now):
            match action:
                case AddToEngine(request=added):
                    self._add(added, request)
                case _:
                    self._carry_out(action)

    def abort(self, message: Abort) -> None:
        self._handle(message)

    def _handle(self, event: Event) -> None:
        for action in self.core.handle(event, self._time.now):
            self._carry_out(action)

    def _carry_out(self, action: object) -> None:
        match action:
            case ToRouter(message=message):
                self._fleet.to_router(self.identity, message)
            case ToGateway(deltas=deltas):
                for delta in deltas:
                    self._stream(delta)
            case AbortInEngine(request_id=request_id, attempt=attempt):
                job = self.jobs.pop((request_id, attempt), None)
                if job is not None:
                    job.dropped = True
                    self.engine.dropped()

    def _stream(self, delta: Delta) -> None:
        key = (delta.request_id, delta.attempt)
        job = self.jobs[key]
        if delta.index == 0:
            self._fleet.to_client(job, False)
        if delta.finish_reason:
            del self.jobs[key]
            self._fleet.to_client(job, True)

    def _add(self, added: EngineRequest, request: Request) -> None:
        job = Job(
            key=(added.request_id, added.attempt),
            arrival=request.arrival,
            arrived=self._time.now,
            blocks=prefix.split(request.hashes),
        )
        self.jobs[job.key] = job
        self._start(job, added)

    def _output(self, job: Job, tokens: int, *, ends: bool, cached: int = 0) -> None:
        """The engine made so many tokens of this job."""
        reason = FinishReason.LENGTH if ends else ""
        output = Output(engine_key(*job.key), [0] * tokens, reason, cached_tokens=cached)
        self._handle(Batch(outputs=[output]))

    def _start(self, job: Job, added: EngineRequest) -> None:
        raise NotImplementedError

    def _computed(self, job: Job) -> None:
        """The engine computed this prompt."""
        raise NotImplementedError

    def _reached(self, job: Job) -> None:
        """The engine made this stream's tokens."""
        raise NotImplementedError


class PrefillModel(ModelWorker):
    role = Role.PREFILL

    def __init__(
        self,
        name: str,
        profile: Profile,
        time: VirtualTime,
        fleet: FleetPort,
        *,
        model: str = "model",
    ) -> None:
        super().__init__(name, profile, time, fleet, model=model)
        self.core = PrefillCore(name, INCARNATION, profile.max_num_seqs)
        self._link_free = 0.0

    def request_kv(self, key: AttemptKey, elsewhere: int) -> None:
        """`elsewhere`: leading tokens that the decode worker has."""
        job = self.jobs.get(key)
        if job is not None:
            job.elsewhere = elsewhere

    def _start(self, job: Job, added: EngineRequest) -> None:
        assert added.ticket is not None
        ticket = added.ticket
        job.taker = identity_of(ticket.decode, ticket.decode_incarnation)
        self.engine.prompt(job)

    def _computed(self, job: Job) -> None:
        now, profile = self._time.now, self._profile
        del self.jobs[job.key]
        self._output(job, 1, ends=True, cached=job.cached)
        prompt = job.arrival.prompt
        last_chunk = max(job.elsewhere, job.cached, prompt - profile.chunk_tokens)
        last = profile.transfer_seconds(prompt, last_chunk)
        began = now - profile.prompt_seconds(prompt, job.cached)
        sending = max(began, self._link_free) + profile.transfer_seconds(prompt, job.elsewhere)
        self._link_free = max(sending, now + last)
        self._time.at(self._link_free + profile.handoff_ms / 1000, lambda: self._sent(job))

    def _sent(self, job: Job) -> None:
        self._handle(Batch(kv_done=[KvDone(*job.key, side="send", report=KvReport())]))
        self._fleet.deliver_kv(job.key, job.taker)


class DecodeModel(ModelWorker):
    """Takes KV for as many requests as it has slots, the oldest first. That of others waits on its
    prefill worker, as if it took no room there."""

    role = Role.DECODE

    def __init__(
        self,
        name: str,
        profile: Profile,
        time: VirtualTime,
        fleet: FleetPort,
        settings: Settings,
        *,
        model: str = "model",
    ) -> None:
        super().__init__(name, profile, time, fleet, model=model)
        limit = grant_limit_of(self.capacity, settings.kv_grant_max, settings.slots_ahead_max)
        self.core = DecodeCore(name, INCARNATION, limit)
        #: Those whose KV could have come, and that have no slot.
        self._waiting: set[AttemptKey] = set()

    def deliver_kv(self, key: AttemptKey) -> None:
        job = self.jobs.get(key)
        if job is None or job.ready:
            return
        if key in self._with_slots():
            self._have(job)
        else:
            self._waiting.add(key)

    def _have(self, job: Job) -> None:
        """Its KV is here."""
        if job.key in self.jobs:
            job.ready = self._time.now
            report = self._report(job)
            self._handle(Batch(kv_done=[KvDone(*job.key, side="receive", report=report)]))
            self.engine.fetched(job)

    def _handle(self, event: Event) -> None:
        super()._handle(event)
        if self._waiting:
            self._let_in()

    def _with_slots(self) -> Iterable[AttemptKey]:
        return islice(self.jobs, self.capacity.max_num_seqs)

    def _let_in(self) -> None:
        """The KV is sent once there is a slot."""
        profile = self._profile
        for key in [key for key in self._with_slots() if key in self._waiting]:
            self._waiting.remove(key)
            job = self.jobs[key]
            seconds = profile.transfer_seconds(job.arrival.prompt, job.cached)
            self._time.after(seconds + profile.handoff_ms / 1000, partial(self._have, job))
        self._waiting &= self.jobs.keys()

    def _start(self, job: Job, added: EngineRequest) -> None:
        ticket = added.ticket
        if ticket is None:
            self.engine.prompt(job)
            return
        job.remote = True
        job.cached = self.engine.cached(job)
        prefill = identity_of(ticket.prefill, ticket.prefill_incarnation)
        self._fleet.request_kv(job.key, prefill, job.cached)

    def _computed(self, job: Job) -> None:
        self._first(job)

    def _reached(self, job: Job) -> None:
        if job.first:
            self._output(job, job.arrival.output - 1, ends=True)
        else:
            self._first(job)

    def _first(self, job: Job) -> None:
        job.first = self._time.now
        job.beside = self.engine.streams + 1
        further = job.arrival.output - 1
        cached = job.arrival.prompt - 1 if job.remote else job.cached
        self._output(job, 1, ends=not further, cached=cached)
        if further:
            self.engine.stream(job, further)

    def _report(self, job: Job) -> KvReport:
        profile = self._profile
        prompt, cached = job.arrival.prompt, job.cached
        size = profile.kv_bytes(prompt, cached)
        return KvReport(
            blocks=blocks_for(size, profile.block_tokens * profile.kv_bytes_per_token),
            complete=True,
            messages=1,
            payload_bytes=size,
            wire_bytes=size,
            wait_ms=(job.ready - job.arrived) * 1000,
            transfer_ms=profile.transfer_seconds(prompt, cached) * 1000,
        )
