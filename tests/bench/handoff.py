"""How long after P's last layer D may schedule the prompt, on real vLLM, by prompt length.

Two engines of this process, as the worker daemons run them, one handoff at a time. Both instants
are taken inside the engines, on the one monotonic clock of the machine: P's when the forward pass
of the last chunk is over, D's when its connector tells vLLM that the load is complete. The ratio is
to P's time for the same prompt, from the request's arrival to the first instant. Digests: what both
ends' took of the time between the instants, as if they overlapped with nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from common.config import from_mapping
from common.engine.connector_meta import StepPlan, request_key
from common.engine.connector_worker import WorkerHalf
from common.engine.port import EngineRequest
from common.kv import digest
from common.messages import Role
from tests.e2e.engine.pair import ENGINE, GREEDY, Pair, open_pair

LENGTHS = (200, 1500, 8000)
TRIES = 50
WARM = 3
PATIENCE_MS = 300_000.0
"""A lease runs from the first chunk on, and 8,000 tokens on a busy CPU take longer than 30 s."""
COMPUTED, LOADED, DIGEST = "computed", "loaded", "digest"


class Sample(NamedTuple):
    """Of one handoff, in ms. `digests`: both ends', those that began after P's last layer."""

    handoff: float
    prefill: float
    digests: float


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
            " tokens  tries  handoff p50 ms  p99 ms  prefill p50 ms  handoff of prefill  digests"
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
    digests = statistics.median(sample.digests / sample.handoff for sample in samples)
    print(
        f"{length:7d} {len(samples):6d} {middle:15.1f} "
        f"{latencies[int(len(latencies) * 0.99) - 1]:7.1f} {prefill:15.1f} "
        f"{middle / prefill:19.1%} {digests:19.1%}",
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
    at, digests = read(notes)
    computed, loaded = at[COMPUTED, key], at[LOADED, key]
    spent = sum(took for when, took in digests if computed <= when <= loaded)
    return Sample((loaded - computed) * 1000, (computed - start) * 1000, spent * 1000)


def read(notes: Path) -> tuple[dict[tuple[str, str], float], list[tuple[float, float]]]:
    """Instants by what happened and to which request; when each digest began, and its seconds."""
    lines = [line.split() for line in notes.read_text().splitlines()]
    instants = {(what, who): float(when) for what, who, when in lines if what != DIGEST}
    return instants, [(float(when), float(took)) for what, took, when in lines if what == DIGEST]


def watch(notes: Path) -> None:
    """Has both engines, which are forked from here, write down their instants and digests."""
    computed, results, digested = WorkerHalf.computed, WorkerHalf.results, digest.payload_digest
    book = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(what: str, about: object, when: float) -> None:
        os.write(book, f"{what} {about} {when}\n".encode())

    def watched_digest(*args: Any) -> int:
        start = time.monotonic()
        value = digested(*args)
        note(DIGEST, time.monotonic() - start, start)
        return value

    def watched_computed(half: WorkerHalf, plan: StepPlan) -> None:
        for progress in plan.progress:
            if progress.computed == progress.prompt_blocks:
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
    digest.payload_digest = watched_digest  # type: ignore[assignment]
