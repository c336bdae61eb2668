"""An engine's continuous batching, exact to the step.

Theory of operation: what a step computes is settled when it begins: a token for each stream, and
prompts in order of arrival up to `chunk_tokens`, each without the leading blocks that the prefix
cache has when its computation begins. What a store has more of it is loaded before that, while the
engine goes on. A job that arrives meanwhile waits for the end of the step.
The step that computes a prompt's end makes its first token. Steps that are all alike (streams only)
are one jump up to the next end of a stream; an arrival cuts the jump at the end of the step it
falls into. So a thousand tokens cost two events, and no latency is rounded.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from common.identity import AttemptKey
from loadtest.capacity.prefix_cache import PrefixCache
from loadtest.capacity.profile import Profile
from loadtest.capacity.virtual_time import VirtualTime
from loadtest.capacity.workload import Arrival

SAME_INSTANT = 1e-9
"""Steps: an arrival so soon after a step's end still belongs to the next one's begin."""


@dataclass(slots=True)
class Job:
    """One attempt on a worker."""

    key: AttemptKey
    arrival: Arrival
    #: When the worker received it.
    arrived: float
    #: Hashes of the prompt's whole blocks.
    blocks: Sequence[bytes] = ()
    #: Leading tokens that this worker's cache had.
    cached: int = 0
    #: Leading tokens that came out of a store.
    loaded: int = 0
    #: On a prefill worker: leading tokens that the decode worker's cache had.
    elsewhere: int = 0
    #: On a prefill worker: identity of the decode worker that takes the KV.
    taker: str = ""
    #: When the decode worker had the KV; 0 until then.
    ready: float = 0.0
    #: When the first token was made; 0 until then.
    first: float = 0.0
    #: Streams of the engine at the first token, this one included.
    beside: int = 0
    #: The KV comes from a prefill worker.
    remote: bool = False
    #: The attempt was aborted.
    dropped: bool = False


@dataclass(slots=True)
class _Prompt:
    """A prompt whose computation has not ended."""

    job: Job
    #: Tokens still to compute; 0 until the computation begins.
    left: int = 0
    #: Tokens computed in the current step.
    chunk: int = 0


class _Jump(NamedTuple):
    began: float
    step: float
    steps: int
    batch: int


class Engine:
    """Continuous batching of one worker. `computed` is called with a job whose prompt is computed,
    `reached` with one that has made all its tokens; both may add work."""

    def __init__(
        self,
        profile: Profile,
        time: VirtualTime,
        computed: Callable[[Job], None],
        reached: Callable[[Job], None],
    ) -> None:
        #: Seconds spent in steps.
        self.busy = 0.0
        #: Integral of the number of streams over those seconds.
        self.batch_seconds = 0.0
        #: Tokens by the duration of the step that made them (ms, rounded to 0.1).
        self.itl: dict[float, float] = {}
        #: Tokens of the prompts whose computation began.
        self.prompt_tokens = 0
        #: Those of them that the prefix cache or a store had.
        self.cached_tokens = 0
        self._cache = PrefixCache(profile.kv_blocks if profile.prefix_cache else 0)
        self._profile = profile
        self._time = time
        self._computed = computed
        self._reached = reached
        self._prompts: deque[_Prompt] = deque()
        self._joining: list[tuple[Job, int]] = []
        self._streams: list[tuple[int, int, Job]] = []
        self._fetched = 0
        self._order = 0
        self._steps = 0
        self._jump: _Jump | None = None
        self._plan = 0
        self._settling = False

    @property
    def streams(self) -> int:
        return len(self._streams) + len(self._joining)

    def prompt(self, job: Job) -> None:
        """To be computed, as far as it is neither cached nor stored."""
        job.loaded = self._profile.stored_tokens(job.arrival.prompt)
        seconds = self._profile.load_seconds(job.loaded - self.cached(job))
        if seconds:
            self._time.at(self._time.now + seconds, lambda: self._enter(job))
        else:
            self._enter(job)

    def stream(self, job: Job, tokens: int) -> None:
        """`reached` when it made so many tokens, from the next step on."""
        self._joining.append((job, tokens))
        self._arrived()

    def fetched(self, job: Job) -> None:
        """A stream whose KV came from a prefill worker. Its prompt's last token is still to
        compute, with its first one."""
        self._cache.add(job.blocks)
        self._fetched += 1
        self.stream(job, 1)

    def cached(self, job: Job) -> int:
        """Leading tokens of the prompt that need not be computed now; its last one always is, and
        with it its block."""
        block = self._profile.block_tokens
        return min(self._cache.match(job.blocks), (job.arrival.prompt - 1) // block) * block

    def dropped(self) -> None:
        """A job was marked: it leaves at the end of the step."""
        self._arrived()

    def settle(self) -> None:
        """Counts the steps that ended until now."""
        jump = self._jump
        if jump is not None and jump.step > 0:
            done = min(jump.steps - 1, int((self._time.now - jump.began) / jump.step))
            self._count(jump._replace(steps=done))
            self._jump = jump._replace(began=jump.began + done * jump.step, steps=jump.steps - done)

    def _enter(self, job: Job) -> None:
        self._prompts.append(_Prompt(job))
        self._arrived()

    def _arrived(self) -> None:
        if self._settling:
            return
        if self._jump is None:
            self._begin()
            return
        jump = self._jump
        if jump.steps > 1:
            passed = (self._time.now - jump.began) / jump.step
            steps = max(1, math.ceil(passed - SAME_INSTANT))
            if steps < jump.steps:
                self._take(jump._replace(steps=steps))

    def _begin(self) -> None:
        self._clear()
        for job, tokens in self._joining:
            self._order += 1
            heapq.heappush(self._streams, (self._steps + tokens, self._order, job))
        self._joining.clear()
        batch, chunks = len(self._streams), self._chunks()
        if not batch and not chunks:
            self._jump = None
            return
        alone, self._fetched = self._fetched == batch and not chunks, 0
        step = self._profile.first_step_seconds(batch) if alone else self._step(batch) + chunks
        steps = 1 if chunks or alone else self._streams[0][0] - self._steps
        self._take(_Jump(self._time.now, step, steps, batch))

    def _step(self, batch: int) -> float:
        return self._profile.step_seconds(batch) if batch else 0.0

    def _chunks(self) -> float:
        """Shares the step's prompt tokens out; the seconds that they take."""
        budget, seconds = self._profile.chunk_tokens, 0.0
        for prompt in self._prompts:
            if not budget:
                break
            job = prompt.job
            prompt.left = prompt.left or self._turn(job)
            prompt.chunk = min(budget, prompt.left)
            budget -= prompt.chunk
            seconds += self._profile.chunk_seconds(prompt.chunk, job.arrival.prompt, job.cached)
        return seconds

    def _turn(self, job: Job) -> int:
        """The prompt's tokens to compute."""
        job.cached = max(self.cached(job), job.loaded)
        self._cache.add(job.blocks)
        self.prompt_tokens += job.arrival.prompt
        self.cached_tokens += job.cached
        return job.arrival.prompt - job.cached

    def _take(self, jump: _Jump) -> None:
        """An earlier plan is void."""
        self._jump = jump
        self._plan += 1
        plan = self._plan
        self._time.at(jump.began + jump.steps * jump.step, lambda: self._ended(plan))

    def _ended(self, plan: int) -> None:
        if plan != self._plan or self._jump is None:
            return
        self._count(self._jump)
        self._settling = True
        while self._prompts and self._prompts[0].chunk:
            prompt = self._prompts[0]
            prompt.left -= prompt.chunk
            prompt.chunk = 0
            if prompt.left:
                break
            self._prompts.popleft()
            if not prompt.job.dropped:
                self._computed(prompt.job)
        while self._streams and self._streams[0][0] <= self._steps:
            job = heapq.heappop(self._streams)[2]
            if not job.dropped:
                self._reached(job)
        self._settling = False
        self._begin()

    def _count(self, jump: _Jump) -> None:
        self._steps += jump.steps
        seconds = jump.steps * jump.step
        self.busy += seconds
        self.batch_seconds += seconds * jump.batch
        if jump.batch and jump.steps:
            slot = round(jump.step * 1000, 1)
            self.itl[slot] = self.itl.get(slot, 0.0) + jump.steps * jump.batch

    def _clear(self) -> None:
        """Removes aborted jobs."""
        if any(entry.job.dropped for entry in self._prompts):
            self._prompts = deque(entry for entry in self._prompts if not entry.job.dropped)
        self._joining = [entry for entry in self._joining if not entry[0].dropped]
        if any(entry[2].dropped for entry in self._streams):
            self._streams = [entry for entry in self._streams if not entry[2].dropped]
            heapq.heapify(self._streams)
