"""The same load on each endpoint in turn, with its fault half way, again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import psutil

from loadtest.bench import arrivals, asks
from loadtest.bench.asks import Ask
from loadtest.bench.driver import Drive, Plan
from loadtest.bench.figures import Figures, figures
from loadtest.bench.prompts import Maker
from loadtest.bench.samples import Sample
from loadtest.capacity.report import Slo

WARM_REQUESTS = 4


class Peer(NamedTuple):
    """`pid`: of the process whose tree is charged, 0 = CPU is not measured. `fault`: a shell
    command run half way, empty = none."""

    name: str
    url: str
    model: str
    pid: int = 0
    fault: str = ""


class Course(NamedTuple):
    mix: str
    scale: float
    rate: float
    seconds: float
    repeats: int
    seed: int
    slo: Slo
    plain: bool = False


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu_us_per_token`: of all of the peer's processes that lived through it. `recovery_s`: from
    the fault's beginning to the first token of a request that was sent after it; None without a
    fault, or where none came. `fault_failed`: why there was none although one was asked for."""

    peer: str
    repeat: int
    figures: Figures
    cpu_us_per_token: float | None
    recovery_s: float | None
    fault_failed: str = ""


class _Struck(NamedTuple):
    """`at`: seconds of the load; None: nothing happened, because of `failed` if that says why."""

    at: float | None = None
    failed: str = ""


async def run(peers: Sequence[Peer], course: Course, tell: Callable[[str], None]) -> list[Round]:
    rounds = []
    for peer in peers:
        await _drive(peer, course, islice(asks.fixed(50, 8, 0), WARM_REQUESTS), 1).run()
    for repeat in range(course.repeats):
        for peer in (*peers[repeat % len(peers) :], *peers[: repeat % len(peers)]):
            tell(f"{repeat + 1} of {course.repeats}: {peer.name}")
            rounds.append(await _round(peer, course, repeat))
    return rounds


async def _round(peer: Peer, course: Course, repeat: int) -> Round:
    seed = course.seed + repeat
    stream = asks.synthetic(course.mix, seed, course.scale)
    timed = arrivals.timed(stream, arrivals.poisson(course.rate, seed))
    drive = _drive(peer, course, arrivals.until(timed, course.seconds), 0)
    before = cpu_seconds(peer.pid)
    async with asyncio.TaskGroup() as group:
        fault = group.create_task(_fault(peer, drive, course.seconds / 2), name="fault")
        await drive.run()
    told = figures(drive.samples, drive.gaps, course.slo, exact_prompts=True)
    tokens = sum(each.tokens for each in drive.samples)
    spent = sum(now - before.get(pid, 0.0) for pid, now in cpu_seconds(peer.pid).items())
    at, failed = fault.result()
    return Round(
        peer=peer.name,
        repeat=repeat,
        figures=told,
        cpu_us_per_token=spent / tokens * 1e6 if peer.pid and tokens else None,
        recovery_s=None if at is None else recovery(drive.samples, at),
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


def _drive(peer: Peer, course: Course, load: Iterable[Ask], concurrency: int) -> Drive:
    maker = Maker(peer.model, ignore_eos=not course.plain)
    return Drive(Plan(peer.url, maker, concurrency=concurrency, timeout=120.0), load)


async def _fault(peer: Peer, drive: Drive, after: float) -> _Struck:
    if not peer.fault:
        return _Struck()
    await asyncio.sleep(max(0.0, after - drive.now))
    at, silent = drive.now, asyncio.subprocess.DEVNULL
    command = ("/bin/sh", "-c", peer.fault)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=silent, stdout=silent, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    if process.returncode == 0:
        return _Struck(at)
    first = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[0]
    return _Struck(failed=f"its fault ended with status {process.returncode}: {first}")
