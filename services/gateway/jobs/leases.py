"""Runs what the shared ledger leases out: the loop of one gateway process, for lines of batches and
for responses of the background alike.

Theory of operation: whoever takes something from the ledger has a lease on it, renews that while he
lives, and writes down what became of it under the fencing number of his taking. One pass of the
loop writes down what became of things since the last one, in one transaction, does what the clock
asks for, and takes new ones. Between passes it sleeps until there is something to do, or
`POLL_SECONDS` have passed, for those of other processes.

An attempt that failed is repeated `ATTEMPTS_MAX` times. What is refused because the fleet is busy
goes back to the ledger, and all wait as long as the refusal says; what a limit of its key refuses
waits with the others of that key. What is broken off goes back, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, Protocol, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from common.clock import Clock
from common.errors import BatonError, Code
from common.process.lifecycle import Tasks
from common.telemetry.log import Logger

POLL_SECONDS = 1.0
#: Parts of a lease after which it is renewed.
RENEWALS = 3
ATTEMPTS_MAX = 3
PAUSE_SECONDS = 1.0
#: Passes follow each other this closely at most, so that one transaction settles many.
PASS_SECONDS = 0.01
#: Processes that were lost while they ran something, after which it may be what kills. The
#: gateway's own die for other reasons, too.
LOSSES_MAX = 10

#: Names one taking: what was taken again is another one while its former run still ends.
Key = tuple[object, ...]


class Leased(Protocol):
    """What is leased. `failures`: attempts that failed before."""

    @property
    def key(self) -> Key: ...

    @property
    def failures(self) -> int: ...


class Outcome(Protocol):
    """What became of it, once and for all."""

    @property
    def failed(self) -> bool: ...


H = TypeVar("H", bound=Leased)
R = TypeVar("R", bound=Outcome)


class Return(NamedTuple, Generic[H]):
    """One that goes back to those that wait."""

    held: H
    #: Whether an attempt failed, rather than was refused or broken off.
    counts: bool = False
    #: When others of its batch or key may be taken again.
    retry_ms: int = 0


class Span(NamedTuple):
    """Milliseconds of the wall clock: the time, and until when is held what is held from now on."""

    now: int
    until: int


class Work(Protocol[H, R]):
    """One kind of what is leased. All that is awaited raises BatonError if the ledger cannot be
    used."""

    @property
    def name(self) -> str: ...

    async def is_quiet(self) -> bool:
        """Whether nothing waits or runs."""
        ...

    async def settle(self, outcomes: Sequence[R | Return[H]]) -> int:
        """Writes down what became of these. Returns how many outcomes came too late."""
        ...

    async def tend(self, span: Span) -> tuple[set[Key], int]:
        """Renews what is held and returns what dead processes held to those that wait. Returns the
        keys of what this process still is to run, and how many were returned."""
        ...

    def room(self, running: int) -> int:
        """How many more may be taken."""
        ...

    async def take(self, room: int, span: Span) -> list[H]: ...

    async def answer(self, held: H) -> R:
        """Raises BatonError."""
        ...

    def failure(self, held: H, error: BatonError) -> R: ...

    def ended(self, held: H) -> None:
        """It does not run any more."""
        ...


@dataclass(slots=True)
class Counts:
    """Since the process started. The names are those of a label."""

    answered: int = 0
    failed: int = 0
    #: Sent back: refused, broken off, or to be tried again.
    returned: int = 0
    #: Outcomes that were not taken: it was cancelled, deleted, or another process's by then.
    late: int = 0
    #: Those of processes that said nothing any more.
    reclaimed: int = 0


class Loop:
    """Does its work again and again: when it is woken, and every `POLL_SECONDS`. Between two times
    it waits for `pass_seconds`."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        log: Logger,
        *,
        pass_seconds: float = PASS_SECONDS,
    ) -> None:
        self._name = name
        self._work = work
        self._log = log
        self._pass_seconds = pass_seconds
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: Tasks) -> None:
        self._task = tasks.start(self._name, self._repeat())

    def wake(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _repeat(self) -> None:
        while True:
            try:
                await self._work()
            except (BatonError, OSError) as error:
                self._log.error(f"{self._name}.delayed", sentence=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(self._pass_seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            self._wake.clear()


class Leases(Generic[H, R]):
    """`is_possible`: whether anything can be served."""

    def __init__(
        self,
        work: Work[H, R],
        *,
        lease_ms: float,
        is_possible: Callable[[], bool],
        clock: Clock,
        log: Logger,
    ) -> None:
        self.counts = Counts()
        self._work = work
        self._lease_ms = lease_ms
        self._is_possible = is_possible
        self._clock = clock
        self._log = log
        self._loop = Loop(work.name, self._pass, log)
        self._tasks: Tasks | None = None
        self._running: dict[Key, asyncio.Task[None]] = {}
        #: What those made of themselves that are not over yet.
        self._made: dict[Key, R | Return[H]] = {}
        self._outcomes: list[R | Return[H]] = []
        self._takes = True
        #: When others are taken again, and when leases are renewed; seconds, monotonic.
        self._paused_until = self._renew_at = 0.0

    def wake(self) -> None:
        """Something is to be done, or not to be done any more."""
        self._renew_at = 0.0
        self._loop.wake()

    def look(self) -> None:
        """There may be room for more."""
        self._loop.wake()

    def start(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._loop.start(tasks)

    def stop_taking(self) -> None:
        """What runs may end."""
        self._takes = False

    async def close(self) -> None:
        """Breaks off what runs, and returns it to the ledger for others. What a ledger that is full
        does not take is run again when its lease is over."""
        await self._loop.close()
        running = list(self._running.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        try:
            await self._settle()
        except BatonError as error:
            sentence = f"{len(self._outcomes)} of them run again: {error}"
            self._log.error(f"{self._work.name}.unwritten", sentence=sentence)

    def collect(self, name: str, what: str) -> Iterator[Metric]:
        """`what`: runs, in the plural."""
        about = f"{what} that this process ran, by what became of them"
        ended = CounterMetricFamily(name, about, labels=["outcome"])
        for field in fields(self.counts):
            ended.add_metric([field.name], getattr(self.counts, field.name))
        yield ended
        yield GaugeMetricFamily(f"{name}_running", f"{what} under way", value=len(self._running))

    # ------------------------------------------------------------ one pass

    async def _pass(self) -> None:
        """Raises BatonError if the ledger cannot be used."""
        await self._settle()
        if self._clock.monotonic() >= self._renew_at:
            await self._tend()
        if not await self._work.is_quiet():
            await self._take()

    def _span(self) -> Span:
        now = self._clock.unix_ms()
        return Span(now, now + int(self._lease_ms))

    async def _settle(self) -> None:
        outcomes = self._outcomes[:]
        if not outcomes:
            return
        self.counts.late += await self._work.settle(outcomes)
        del self._outcomes[: len(outcomes)]
        for outcome in outcomes:
            if isinstance(outcome, Return):
                self.counts.returned += 1
            elif outcome.failed:
                self.counts.failed += 1
            else:
                self.counts.answered += 1

    async def _tend(self) -> None:
        """What the clock asks for. What is not this process's any more is broken off."""
        self._renew_at = self._clock.monotonic() + self._lease_ms / 1000 / RENEWALS
        running = set(self._running)
        held, reclaimed = await self._work.tend(self._span())
        self.counts.reclaimed += reclaimed
        for key in (running - held) & self._running.keys():
            self._running[key].cancel()

    async def _take(self) -> None:
        room = self._work.room(len(self._running))
        paused = self._clock.monotonic() < self._paused_until
        if room <= 0 or paused or not self._takes or not self._is_possible():
            return
        for held in await self._work.take(room, self._span()):
            self._begin(held)

    # ------------------------------------------------------------ one of them

    def _begin(self, held: H) -> None:
        assert self._tasks is not None
        name = f"{self._work.name} {held.key}"
        self._running[held.key] = task = self._tasks.start(name, self._run(held), ends=True)
        task.add_done_callback(lambda _: self._ended(held))

    def _ended(self, held: H) -> None:
        """One that was broken off made nothing, and is returned."""
        self._outcomes.append(self._made.pop(held.key, Return(held)))
        self._work.ended(held)
        del self._running[held.key]
        self._loop.wake()

    async def _run(self, held: H) -> None:
        try:
            self._made[held.key] = await self._outcome(held)
        except Exception as error:  # noqa: BLE001 - a defect must not take the gateway along
            self._log.error(f"{self._work.name}.crashed", key=held.key, exc_info=error)
            internal = BatonError(Code.INTERNAL, "internal error")
            self._made[held.key] = self._work.failure(held, internal)

    async def _outcome(self, held: H) -> R | Return[H]:
        """What it is answered. An error makes it wait again, be tried again, or fail."""
        try:
            return await self._work.answer(held)
        except BatonError as error:
            if error.http.status in (429, 503):
                seconds = max(PAUSE_SECONDS, (error.retry_after_ms or 0) / 1000)
                if error.code is Code.RATE_LIMITED:
                    return Return(held, retry_ms=self._clock.unix_ms() + int(seconds * 1000))
                self._paused_until = self._clock.monotonic() + seconds
                return Return(held)
            if error.http.retryable and held.failures + 1 < ATTEMPTS_MAX:
                return Return(held, counts=True)
            return self._work.failure(held, error)
