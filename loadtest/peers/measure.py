"""The same load on each endpoint in turn, with its fault half way, repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import psutil

from loadtest.bench import arrivals, request_specs
from loadtest.bench.driver import LoadPlan, LoadRun
from loadtest.bench.figures import Figures, figures
from loadtest.bench.prompts import Maker
from loadtest.bench.request_specs import RequestSpec
from loadtest.bench.sample import Sample
from loadtest.capacity.report import Slo

WARM_REQUESTS = 4


class ComparedEndpoint(NamedTuple):
    """One endpoint of the comparison."""

    name: str
    url: str
    model: str
    #: Root of the process tree whose CPU is measured; 0 = not measured.
    pid: int = 0
    #: Shell command run half way; empty = none.
    fault: str = ""


class PeersPlan(NamedTuple):
    mix: str
    scale: float
    rate: float
    seconds: float
    repeats: int
    seed: int
    slo: Slo
    plain: bool = False


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one endpoint."""

    peer: str
    repeat: int
    figures: Figures
    #: CPU of all processes of the tree that lived through the round.
    cpu_us_per_token: float | None
    #: From the fault to the first token of a request sent after it; None without a fault or such a
    #: token.
    recovery_s: float | None
    #: Why the fault could not be injected; empty if it was or none was asked for.
    fault_failed: str = ""


class _FaultResult(NamedTuple):
    """The result of a fault."""

    #: Seconds of the load; None if no fault took effect.
    at: float | None = None
    #: Why it took no effect.
    failed: str = ""


async def run(
    peers: Sequence[ComparedEndpoint], course: PeersPlan, report_progress: Callable[[str], None]
) -> list[Round]:
    rounds = []
    for peer in peers:
        await _load_run(peer, course, islice(request_specs.fixed(50, 8, 0), WARM_REQUESTS), 1).run()
    for repeat in range(course.repeats):
        for peer in (*peers[repeat % len(peers) :], *peers[: repeat % len(peers)]):
            report_progress(f"{repeat + 1} of {course.repeats}: {peer.name}")
            rounds.append(await _round(peer, course, repeat))
    return rounds


async def _round(peer: ComparedEndpoint, course: PeersPlan, repeat: int) -> Round:
    seed = course.seed + repeat
    stream = request_specs.synthetic(course.mix, seed, course.scale)
    timed = arrivals.timed(stream, arrivals.poisson(course.rate, seed))
    load_run = _load_run(peer, course, arrivals.until(timed, course.seconds), 0)
    before = cpu_seconds(peer.pid)
    async with asyncio.TaskGroup() as group:
        fault = group.create_task(_fault(peer, load_run, course.seconds / 2), name="fault")
        await load_run.run()
    measured = figures(load_run.samples, load_run.gaps, course.slo, exact_prompts=True)
    tokens = sum(sample.tokens for sample in load_run.samples)
    spent = sum(now - before.get(pid, 0.0) for pid, now in cpu_seconds(peer.pid).items())
    at, failed = fault.result()
    return Round(
        peer=peer.name,
        repeat=repeat,
        figures=measured,
        cpu_us_per_token=spent / tokens * 1e6 if peer.pid and tokens else None,
        recovery_s=None if at is None else recovery(load_run.samples, at),
        fault_failed=failed,
    )


def recovery(samples: Sequence[Sample], fault: float) -> float | None:
    """Seconds from the fault to the first token of what was sent after it and ended well."""
    firsts = [s.first for s in samples if s.ok and s.due >= fault and s.first is not None]
    return min(firsts) - fault if firsts else None


def cpu_seconds(pid: int) -> Mapping[int, float]:
    """By process of the tree, user and system."""
    found: dict[int, float] = {}
    if not pid:
        return found
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    except psutil.NoSuchProcess:
        return found
    return found


def _load_run(
    peer: ComparedEndpoint, course: PeersPlan, load: Iterable[RequestSpec], concurrency: int
) -> LoadRun:
    maker = Maker(peer.model, ignore_eos=not course.plain)
    return LoadRun(LoadPlan(peer.url, maker, concurrency=concurrency, timeout=120.0), load)


async def _fault(peer: ComparedEndpoint, load_run: LoadRun, after: float) -> _FaultResult:
    if not peer.fault:
        return _FaultResult()
    await asyncio.sleep(max(0.0, after - load_run.now))
    at, silent = load_run.now, asyncio.subprocess.DEVNULL
    command = ("/bin/sh", "-c", peer.fault)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=silent, stdout=silent, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    if process.returncode == 0:
        return _FaultResult(at)
    first = (errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[0]
    return _FaultResult(failed=f"its fault ended with status {process.returncode}: {first}")
