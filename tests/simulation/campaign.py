"""Many seeds on all cores, with their sums and whatever failed.

Each worker process plays blocks of seeds and hands back plain values. Nothing is shared, so a
failing seed replays alone: `python -m tests.simulation --seed N --trace`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Unpack

from tests.simulation.world.clock import PromiseBrokenError
from tests.simulation.world.world import Kinds, World

BLOCK = 25
FAILURES_MAX = 100


@dataclass
class Sums:
    """Over some seeds. `failures`: (seed, sentence), the first `FAILURES_MAX`."""

    seeds: int = 0
    failed: int = 0
    events: int = 0
    requests: int = 0
    dispatches: int = 0
    first_dispatches: int = 0
    moves: int = 0
    taken: int = 0
    copied: int = 0
    ahead: int = 0
    roles: int = 0
    virtual_seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    weathers: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    balanced: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Sums) -> None:
        self.seeds += other.seeds
        self.failed += other.failed
        self.events += other.events
        self.requests += other.requests
        self.dispatches += other.dispatches
        self.first_dispatches += other.first_dispatches
        self.moves += other.moves
        self.taken += other.taken
        self.copied += other.copied
        self.ahead += other.ahead
        self.roles += other.roles
        self.virtual_seconds += other.virtual_seconds
        self.ends.update(other.ends)
        self.faults.update(other.faults)
        self.weathers.update(other.weathers)
        self.models.update(other.models)
        self.moved.update(other.moved)
        self.struck.update(other.struck)
        self.balanced += other.balanced
        self.failures = (self.failures + other.failures)[:FAILURES_MAX]

    @property
    def amplification(self) -> float:
        """Dispatches per dispatched request."""
        return self.dispatches / max(1, self.first_dispatches)


def play(first: int, count: int, **kinds: Unpack[Kinds]) -> Sums:
    """These seeds, in this process. `kinds`: as in `World`."""
    sums = Sums()
    for seed in range(first, first + count):
        sentence = play_one(seed, sums, **kinds)
        sums.seeds += 1
        if sentence:
            sums.failed += 1
            sums.failures.append((seed, sentence))
    return sums


def play_one(seed: int, sums: Sums, **kinds: Unpack[Kinds]) -> str:
    """What this seed broke, empty if nothing. `kinds`: as in `World`."""
    world = World(seed, **kinds)
    try:
        outcome = world.run()
    except PromiseBrokenError as broken:
        return str(broken)
    except Exception as error:  # any exception of a core is a finding, with its place
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} at {where.filename}:{where.lineno}"
    sums.events += outcome.events
    sums.requests += outcome.requests
    sums.dispatches += outcome.dispatches
    sums.first_dispatches += outcome.first_dispatches
    sums.moves += outcome.moves
    sums.taken += outcome.taken
    sums.copied += outcome.copied
    sums.ahead += outcome.ahead
    sums.roles += len(world.fleet.tally.roles)
    sums.virtual_seconds += outcome.virtual_seconds
    sums.ends.update(outcome.ends)
    sums.faults.update(outcome.faults)
    sums.weathers[outcome.weather] += 1
    sums.models[outcome.model] += 1
    sums.moved.update(outcome.moved)
    sums.struck.update(outcome.struck)
    sums.balanced += outcome.balanced
    return ""


def campaign(
    seeds: int,
    *,
    first: int = 0,
    jobs: int = 0,
    progress: Callable[[Sums], None] = lambda sums: None,
    **kinds: Unpack[Kinds],
) -> Sums:
    """All of them; `jobs` 0 = one a core; `kinds`: as in `World`.
    Interrupted by Ctrl-C, it returns what was done by then."""
    total = Sums()
    with ProcessPoolExecutor(
        max_workers=jobs or os.cpu_count() or 1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
    ) as pool:
        try:
            for sums in _results(pool, first, seeds, **kinds):
                total.add(sums)
                progress(total)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
    return total


def _begin() -> None:
    """In each worker process. What was imported lasts as long as the process, so the garbage
    collector need not look through it again and again. It ends with the process that started it,
    however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _results(
    pool: ProcessPoolExecutor, first: int, seeds: int, **kinds: Unpack[Kinds]
) -> Iterator[Sums]:
    """At most a few blocks are handed out ahead, so that an interrupt is heard soon."""
    starts = iter(range(first, first + seeds, BLOCK))
    end = first + seeds
    running: set[Future[Sums]] = set()

    def refill() -> None:
        for start in starts:
            running.add(pool.submit(play, start, min(BLOCK, end - start), **kinds))
            if len(running) >= 2 * (os.cpu_count() or 1):
                return

    refill()
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            running.discard(future)
            yield future.result()
        refill()
