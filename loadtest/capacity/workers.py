"""Modelled workers: how long the engine would take, and the messages it would send.

What they compute and when is `engine`'s; here is what a worker makes of it. A prefill worker's KV
leaves over one link, transfer after transfer, without what D's prefix cache has when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from common import prefix
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


class Asked(NamedTuple):
    """`hashes`: of the prompt's whole blocks, packed (`loadtest.capacity.prefix`)."""

    ask: Arrival
    hashes: bytes


class Outlet:
    """What a worker needs of the fleet around it. `kv_wanted`: D tells this P how many of the
    prompt's leading tokens it has."""

    def __init__(
        self,
        say: Callable[[str, Message], None],
        kv_wanted: Callable[[Key, str, int], None],
        kv_ready: Callable[[Key, str], None],
        streamed: Callable[[Job, bool], None],
    ) -> None:
        self.say = say
        self.kv_wanted = kv_wanted
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

    def _take(self, message: Prefill | Decode, asked: Asked) -> Job:
        key, blocks = (message.request_id, message.attempt), prefix.split(asked.hashes)
        job = Job(key, asked.ask, self._time.now, blocks)
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

    def prefill(self, message: Prefill, asked: Asked) -> None:
        self.engine.prompt(self._take(message, asked))

    def kv_wanted(self, key: Key, elsewhere: int) -> None:
        """`elsewhere`: leading tokens that D has."""
        job = self.jobs.get(key)
        if job is not None:
            job.elsewhere = elsewhere

    def _computed(self, job: Job) -> None:
        now, profile = self._time.now, self._profile
        del self.jobs[job.key]
        prompt = job.ask.prompt
        self._say(
            PrefillEnded(
                request_id=job.key[0],
                attempt=job.key[1],
                elapsed_ms=(now - job.arrived) * 1000,
                cached_tokens=job.cached,
            )
        )
        wanted, computed = prompt - job.elsewhere, prompt - job.cached
        last = profile.transfer_seconds(min(wanted, computed, profile.chunk_tokens))
        began = now - profile.prompt_seconds(prompt, job.cached)
        sending = max(began, self._link_free) + profile.transfer_seconds(wanted)
        self._link_free = max(sending, now + last)
        there = self._link_free + profile.handoff_ms / 1000
        self._time.at(there, lambda: self._outlet.kv_ready(job.key, self.identity))


class DecodeModel(ModelWorker):
    role = Role.DECODE

    def decode(self, message: Decode, asked: Asked) -> None:
        job, ticket = self._take(message, asked), message.ticket
        if ticket is None:
            self.engine.prompt(job)
            return
        job.remote = True
        job.cached = self.engine.cached(job)
        prefill = f"{ticket.prefill}|{ticket.prefill_incarnation}"
        self._outlet.kv_wanted(job.key, prefill, job.cached)

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
        self._say(
            DecodeStarted(
                request_id=request_id,
                attempt=attempt,
                elapsed_ms=(job.first - job.arrived) * 1000,
                cached_tokens=job.ask.prompt - 1 if job.remote else job.cached,
                kv=self._report(job) if job.remote else None,
            )
        )
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
        came = job.ask.prompt - job.cached
        size = came * profile.kv_bytes_per_token
        return KvReport(
            blocks=-(-came // profile.block_tokens),
            complete=True,
            messages=1,
            payload_bytes=size,
            wire_bytes=size,
            wait_ms=(job.ready - job.arrived) * 1000,
            transfer_ms=profile.transfer_seconds(came) * 1000,
        )
