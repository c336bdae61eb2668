"""An engine's continuous batching, exact to the step.

Theory of operation: what a step computes is settled when it begins: a token for each stream, and
prompts in order of arrival as far as `chunk_tokens` goes, each without the leading blocks that the
prefix cache has when its turn comes. Who arrives meanwhile waits for its end, and the step that
computes a prompt's end makes its first token. Steps that are all alike (streams only) are one jump
up to the next end of a stream; an arrival cuts the jump at the end of the step it falls into. So a
thousand tokens cost two events, and no latency is rounded.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadtest.capacity.prefix_cache import PrefixCache
from loadtest.capacity.profile import Profile
from loadtest.capacity.timeline import Timeline
from loadtest.capacity.workload import Arrival

SAME_INSTANT = 1e-9
"""Steps: an arrival so soon after a step's end still belongs to the next one's begin."""
Key = tuple[str, int]


@dataclass(slots=True)
class Job:
    """One try on a worker. `blocks`: hashes of the prompt's whole blocks; `cached`: leading tokens
    that this worker's cache had; `elsewhere`: on P, those that D's cache had. `ready`: when D had
    its KV; `first`: when it made the first token; `beside`: streams of the engine then, itself
    included. `dropped`: nobody wants it any more."""

    key: Key
    ask: Arrival
    arrived: float
    blocks: Sequence[bytes] = ()
    cached: int = 0
    elsewhere: int = 0
    ready: float = 0.0
    first: float = 0.0
    beside: int = 0
    remote: bool = False
    dropped: bool = False


@dataclass(slots=True)
class _Prompt:
    """`left`: tokens to compute, 0 until its turn comes."""

    job: Job
    left: int = 0
    chunk: int = 0


class _Jump(NamedTuple):
    began: float
    step: float
    steps: int
    batch: int


class Engine:
    """`computed` hears of a prompt whose last token is computed, `reached` of a stream that made
    all its tokens; both may add work. `busy`: seconds of steps; `batch_seconds`: the integral of
    streams over them; `itl`: tokens by the time (ms, rounded to 0.1) of the step they came from.
    `prompt_tokens`: of the prompts whose turn came; `cached_tokens`: of them, not computed here."""

    def __init__(
        self,
        profile: Profile,
        time: Timeline,
        computed: Callable[[Job], None],
        reached: Callable[[Job], None],
    ) -> None:
        self.busy = 0.0
        self.batch_seconds = 0.0
        self.itl: dict[float, float] = {}
        self.prompt_tokens = 0
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
        """To be computed, as far as it is not cached."""
        self._prompts.append(_Prompt(job))
        self._arrived()

    def stream(self, job: Job, tokens: int) -> None:
        """`reached` when it made so many tokens, from the next step on."""
        self._joining.append((job, tokens))
        self._arrived()

    def fetched(self, job: Job) -> None:
        """A stream whose KV came from elsewhere: its prompt's last token is still to be computed,
        with its first one."""
        self._cache.add(job.blocks)
        self._fetched += 1
        self.stream(job, 1)

    def cached(self, job: Job) -> int:
        """Leading tokens of the prompt that need not be computed now; its last one always is, and
        with it its block."""
        block = self._profile.block_tokens
        return min(self._cache.match(job.blocks), (job.ask.prompt - 1) // block) * block

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
        for each in self._prompts:
            if not budget:
                break
            job = each.job
            each.left = each.left or self._turn(job)
            each.chunk = min(budget, each.left)
            budget -= each.chunk
            seconds += self._profile.chunk_seconds(each.chunk, job.ask.prompt, job.cached)
        return seconds

    def _turn(self, job: Job) -> int:
        """The prompt's tokens to compute."""
        job.cached = self.cached(job)
        self._cache.add(job.blocks)
        self.prompt_tokens += job.ask.prompt
        self.cached_tokens += job.cached
        return job.ask.prompt - job.cached

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
            each = self._prompts[0]
            each.left -= each.chunk
            each.chunk = 0
            if each.left:
                break
            self._prompts.popleft()
            if not each.job.dropped:
                self._computed(each.job)
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
        """Lets go of who is not wanted any more."""
        if any(each.job.dropped for each in self._prompts):
            self._prompts = deque(each for each in self._prompts if not each.job.dropped)
        self._joining = [each for each in self._joining if not each[0].dropped]
        if any(each[2].dropped for each in self._streams):
            self._streams = [each for each in self._streams if not each[2].dropped]
            heapq.heapify(self._streams)
