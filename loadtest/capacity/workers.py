"""Modelled workers: how long the engine would take, and the messages it would send.

What they compute and when is `engine`'s; here is what a worker makes of it. A prefill worker's KV
leaves over one link, transfer after transfer.
"""

from __future__ import annotations

from collections.abc import Callable

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
from loadtest.capacity.engine import Engine, Job, Key
from loadtest.capacity.profile import Profile
from loadtest.capacity.timeline import Timeline
from loadtest.capacity.workload import Arrival


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
    role: Role

    def __init__(self, name: str, profile: Profile, time: Timeline, outlet: Outlet) -> None:
        self.name = name
        self.identity = f"{name}|1"
        self.jobs: dict[Key, Job] = {}
        self.engine = Engine(profile, time, self._computed, self._reached)
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

    def abort(self, message: Abort) -> None:
        job = self.jobs.pop((message.request_id, message.attempt), None)
        if job is not None:
            job.dropped = True
            self.engine.dropped()
            self._aborted(job)

    def _take(self, message: Prefill | Decode, ask: Arrival) -> Job:
        job = Job((message.request_id, message.attempt), ask, self._time.now)
        self.jobs[job.key] = job
        return job

    def _say(self, message: Message) -> None:
        self._outlet.say(self.identity, message)

    def _computed(self, job: Job) -> None:
        """The engine computed this prompt."""
        raise NotImplementedError

    def _reached(self, job: Job) -> None:
        """The engine made this stream's tokens."""
        raise NotImplementedError

    def _aborted(self, job: Job) -> None:
        """What the router is told of it, beside what it asked for."""


class PrefillModel(ModelWorker):
    role = Role.PREFILL

    def __init__(self, name: str, profile: Profile, time: Timeline, outlet: Outlet) -> None:
        super().__init__(name, profile, time, outlet)
        self._link_free = 0.0

    def prefill(self, message: Prefill, ask: Arrival) -> None:
        self.engine.prompt(self._take(message, ask))

    def _computed(self, job: Job) -> None:
        now, profile = self._time.now, self._profile
        del self.jobs[job.key]
        elapsed = (now - job.arrived) * 1000
        self._say(PrefillEnded(request_id=job.key[0], attempt=job.key[1], elapsed_ms=elapsed))
        last = profile.transfer_seconds(min(job.ask.prompt, profile.chunk_tokens))
        began = now - profile.prefill_seconds(job.ask.prompt)
        sending = max(began, self._link_free) + profile.transfer_seconds(job.ask.prompt)
        self._link_free = max(sending, now + last)
        there = self._link_free + profile.handoff_ms / 1000
        self._time.at(there, lambda: self._outlet.kv_ready(job.key, self.identity))


class DecodeModel(ModelWorker):
    role = Role.DECODE

    def decode(self, message: Decode, ask: Arrival) -> None:
        job = self._take(message, ask)
        job.remote = message.ticket is not None
        if not job.remote:
            self.engine.prompt(job)

    def kv_ready(self, key: Key) -> None:
        job = self.jobs.get(key)
        if job is not None and not job.ready:
            job.ready = self._time.now
            self.engine.fetched(job)

    def _computed(self, job: Job) -> None:
        self._first(job)

    def _reached(self, job: Job) -> None:
        if job.first:
            self._end(job)
        else:
            self._first(job)

    def _aborted(self, job: Job) -> None:
        self._say(Ended(request_id=job.key[0], attempt=job.key[1], error="cancelled"))

    def _first(self, job: Job) -> None:
        request_id, attempt = job.key
        job.first = self._time.now
        job.beside = self.engine.streams + 1
        self._outlet.streamed(job, False)
        elapsed = (job.first - job.arrived) * 1000
        kv = self._report(job) if job.remote else None
        self._say(DecodeStarted(request_id=request_id, attempt=attempt, elapsed_ms=elapsed, kv=kv))
        if job.ask.output > 1:
            self.engine.stream(job, job.ask.output - 1)
        else:
            self._end(job)

    def _end(self, job: Job) -> None:
        request_id, attempt = job.key
        del self.jobs[job.key]
        self._outlet.streamed(job, True)
        self._say(
            Ended(
                request_id=request_id,
                attempt=attempt,
                finish_reason="length",
                completion_tokens=job.ask.output,
                decode_ms=(self._time.now - job.first) * 1000,
            )
        )

    def _report(self, job: Job) -> KvReport:
        profile = self._profile
        size = job.ask.prompt * profile.kv_bytes_per_token
        return KvReport(
            blocks=-(-job.ask.prompt // profile.block_tokens),
            complete=True,
            messages=1,
            payload_bytes=size,
            wire_bytes=size,
            wait_ms=(job.ready - job.arrived) * 1000,
            transfer_ms=profile.transfer_seconds(job.ask.prompt) * 1000,
        )
