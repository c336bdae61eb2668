"""How long after P's last layer D may schedule the prompt, on real vLLM, by prompt length.

Two engines of this process, as the worker daemons run them, one handoff at a time. Both instants
are taken inside the engines, on the one monotonic clock of the machine: P's when the forward pass
of the last chunk is over, D's when its connector tells vLLM that the load is complete. The ratio is
to P's time for the same prompt, from the request's arrival to the first instant. Copies: what both
ends' took of the time between the instants, digests with them, as if they overlapped with nothing.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from common.config import from_mapping
from common.engine.connector.metadata import StepPlan, request_key
from common.engine.connector.worker import WorkerHalf
from common.engine.port import EngineRequest
from common.kv.checksum import kernel
from common.kv.checksum.kernel import Kernel
from common.messages import Role
from tests.e2e.engine.pair import ENGINE, GREEDY, Pair, open_pair

LENGTHS = (200, 1500, 8000)
TRIES = 50
WARM = 3
PATIENCE_MS = 300_000.0
"""A lease runs from the first chunk on, and 8,000 tokens on a busy CPU take longer than 30 s."""
COMPUTED, LOADED, COPY = "computed", "loaded", "copy"


class Sample(NamedTuple):
    """Of one handoff, in ms. `copies`: both ends', those that began after P's last layer."""

    handoff: float
    prefill: float
    copies: float


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="baton-") as run_dir:
        notes = Path(run_dir) / "instants"
        watch(notes)
        patient = {"lease_ms": PATIENCE_MS, "load_timeout_ms": PATIENCE_MS}
        worker = {"engine": {**ENGINE, "kv_cache_mib": 256}, "kv": patient}
        pair = open_pair(
            from_mapping(
                {
                    "fleet": {"run_dir": run_dir},
                    "model": {"path": "baton-tiny", "dtype": "float32", "max_model_len": 8192},
                    "prefill": {"p0": worker},
                    "decode": {"d0": worker},
                }
            )
        )
        print(
            " tokens  tries  handoff p50 ms  p99 ms  prefill p50 ms  handoff of prefill   copies"
            " of handoff"
        )
        asyncio.run(measure_all(pair, notes))


async def measure_all(pair: Pair, notes: Path) -> None:
    async with pair:
        for length in LENGTHS:
            samples = [await handed(pair, notes, length, i) for i in range(TRIES + WARM)][WARM:]
            _show(length, samples)
    await pair.decode.engine.close()
    await pair.prefill.engine.close()


def _show(length: int, samples: list[Sample]) -> None:
    latencies = sorted(sample.handoff for sample in samples)
    middle = statistics.median(latencies)
    prefill = statistics.median(sample.prefill for sample in samples)
    copies = statistics.median(sample.copies / sample.handoff for sample in samples)
    print(
        f"{length:7d} {len(samples):6d} {middle:15.1f} "
        f"{latencies[int(len(latencies) * 0.99) - 1]:7.1f} {prefill:15.1f} "
        f"{middle / prefill:19.1%} {copies:8.1%}",
        flush=True,
    )


async def handed(pair: Pair, notes: Path, length: int, number: int) -> Sample:
    """One prompt that nobody has cached."""
    name = f"bench{length}-{number}"
    draw = random.Random(name)
    prompt = [draw.randint(10, 250) for _ in range(length)]
    ticket = pair.ticket(name, PATIENCE_MS)
    start = time.monotonic()
    await pair.prefill.add(EngineRequest(name, 0, Role.PREFILL, prompt, GREEDY, ticket, name))
    result = await pair.decode.add(
        EngineRequest(name, 0, Role.DECODE, prompt, GREEDY, ticket, name)
    )
    await asyncio.wait_for(result.done.wait(), PATIENCE_MS / 1000)
    end = await pair.decode.kv_end(name, "receive")
    await pair.prefill.kv_end(name, "send")
    if end.error:
        raise RuntimeError(f"the handoff failed: {end.message}")
    key = request_key((name, 0))
    at, copies = read(notes)
    computed, loaded = at[COMPUTED, key], at[LOADED, key]
    spent = sum(took for when, took in copies if computed <= when <= loaded)
    return Sample((loaded - computed) * 1000, (computed - start) * 1000, spent * 1000)


def read(notes: Path) -> tuple[dict[tuple[str, str], float], list[tuple[float, float]]]:
    """Instants by what happened and to which request; when each copy began, and its seconds."""
    lines = [line.split() for line in notes.read_text().splitlines()]
    instants = {(what, who): float(when) for what, who, when in lines if what != COPY}
    return instants, [(float(when), float(took)) for what, took, when in lines if what == COPY]


def watch(notes: Path) -> None:
    """Has both engines, which are forked from here, write down their instants and copies."""
    computed, results = WorkerHalf.computed, WorkerHalf.results
    book = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(what: str, about: object, when: float) -> None:
        os.write(book, f"{what} {about} {when}\n".encode())

    @functools.cache
    def watched_kernel() -> Kernel:
        made = kernel.compiled()
        return Kernel(
            *(watched_copy(code) for code in (made.read, made.copy, made.copy_nontemporal))
        )

    def watched_copy(code: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: int) -> None:
            start = time.monotonic()
            code(*arguments)
            note(COPY, time.monotonic() - start, start)

        return run

    def watched_computed(half: WorkerHalf, plan: StepPlan) -> None:
        for progress in plan.progress:
            if len(progress.block_ids) == progress.handoff_blocks:
                note(COMPUTED, request_key(progress.key), time.monotonic())
        computed(half, plan)

    def watched_results(
        half: WorkerHalf, plan: StepPlan, finished: Iterable[str]
    ) -> tuple[set[str], set[str], set[str]]:
        told = results(half, plan, finished)
        for request in told[1]:
            note(LOADED, request, time.monotonic())
        return told

    WorkerHalf.computed = watched_computed  # type: ignore[method-assign,assignment]
    WorkerHalf.results = watched_results  # type: ignore[method-assign,assignment]
    kernel.kernel = watched_kernel
