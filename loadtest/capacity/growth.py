"""The cost of a request by fleet size: one load on ever larger fleets, each in its own process.

What a request costs the core, what the workers' reports cost with or without load, how long
a fleet takes to join, how fast it is simulated, and what it holds in memory.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import msgspec
import psutil

from loadtest.capacity.fleet import Scenario, run
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import Report
from loadtest.capacity.workload import Arrival
from services.router.settings import Settings

DRAIN_SECONDS = 300.0


class Fleets(NamedTuple):
    """The load and the division of every fleet."""

    profile: Profile
    arrivals: Sequence[Arrival]
    #: Share of prefill workers.
    share: float


class SizeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one fleet size."""

    prefills: int
    decodes: int
    #: Memory of the process at the end, the simulation included.
    memory_mib: float
    report: Report


def grow(sizes: Sequence[int], fleets: Fleets) -> Iterator[SizeResult]:
    """One after the other; memory is not what an earlier one left behind."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        for workers in sizes:
            yield pool.submit(play, workers, fleets).result()


def play(workers: int, fleets: Fleets) -> SizeResult:
    prefills = min(workers - 1, max(1, round(workers * fleets.share)))
    report = run(
        Scenario(
            profile=fleets.profile,
            prefills=prefills,
            decodes=workers - prefills,
            arrivals=fleets.arrivals,
            seconds=fleets.arrivals[-1].at + 1e-3,
            drain_seconds=DRAIN_SECONDS,
            settings=Settings(max_queue=max(1024, len(fleets.arrivals))),
        )
    )
    memory = psutil.Process().memory_info().rss / (1 << 20)
    return SizeResult(
        prefills=prefills, decodes=workers - prefills, memory_mib=memory, report=report
    )


def head() -> str:
    return (
        f"{'workers':>8}{'P + D':>14}{'ended':>8}{'us/request':>12}{'at rest':>9}{'requests/s':>12}"
        f"{'joined':>10}{'events/s':>10}{'RSS MiB':>9}"
    )


def line(size: SizeResult) -> str:
    """`at rest`: share of a core for reports and ticks; `requests/s`: what the rest of it does."""
    report = size.report
    left = max(0.0, 1.0 - report.resting) / max(report.router_us, 1e-9) * 1e6
    return (
        f"{size.prefills + size.decodes:>8}{f'{size.prefills} + {size.decodes}':>14}"
        f"{report.ended:>8}{report.router_us:>12.0f}{report.resting:>9.1%}{left:>12.0f}"
        f"{report.router_seconds['join']:>8.2f} s{report.events_per_s:>10.0f}"
        f"{size.memory_mib:>9.0f}"
    )
