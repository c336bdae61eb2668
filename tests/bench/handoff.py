"""How long after P's last layer D may schedule the prompt, on real vLLM, by prompt length.

Two engines of this process, as the worker daemons run them, one handoff at a time. Both instants
are taken inside the engines, on the one monotonic clock of the machine: P's when the forward pass
of the last chunk is over, D's when its connector tells vLLM that the load is complete. The ratio is
to P's time for the same prompt, from the request's arrival to the first instant.
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

from common.config import from_mapping
from common.engine.connector_meta import StepPlan, request_key
from common.engine.connector_worker import WorkerHalf
from common.engine.port import EngineRequest
from common.messages import Role
from tests.e2e.engine.pair import ENGINE, GREEDY, Pair, open_pair

LENGTHS = (200, 1500, 8000)
TRIES = 50
WARM = 3
COMPUTED, LOADED = "computed", "loaded"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="baton-") as run_dir:
        notes = Path(run_dir) / "instants"
        watch(notes)
        worker = {"engine": {**ENGINE, "kv_cache_mib": 256}}
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
        print(" tokens  tries  handoff p50 ms  p99 ms  prefill p50 ms  handoff of prefill")
        asyncio.run(measure_all(pair, notes))


async def measure_all(pair: Pair, notes: Path) -> None:
    async with pair:
        for length in LENGTHS:
            samples = [await handed(pair, notes, length, i) for i in range(TRIES + WARM)][WARM:]
            latencies = sorted(latency for latency, _ in samples)
            prefill = statistics.median(took for _, took in samples)
            middle = statistics.median(latencies)
            print(
                f"{length:7d} {len(samples):6d} {middle:15.1f} "
                f"{latencies[int(len(latencies) * 0.99) - 1]:7.1f} {prefill:15.1f} "
                f"{middle / prefill:19.1%}"
            )
    await pair.decode.engine.close()
    await pair.prefill.engine.close()


async def handed(pair: Pair, notes: Path, length: int, number: int) -> tuple[float, float]:
    """(handoff, prefill) in ms of one prompt that nobody has cached."""
    name = f"bench{length}-{number}"
    draw = random.Random(name)
    prompt = [draw.randint(10, 250) for _ in range(length)]
    ticket = pair.ticket(name)
    start = time.monotonic()
    await pair.prefill.add(EngineRequest(name, 0, Role.PREFILL, prompt, GREEDY, ticket, name))
    result = await pair.decode.add(
        EngineRequest(name, 0, Role.DECODE, prompt, GREEDY, ticket, name)
    )
    await asyncio.wait_for(result.done.wait(), 120)
    end = await pair.decode.kv_end(name, "receive")
    await pair.prefill.kv_end(name, "send")
    if end.error:
        raise RuntimeError(f"the handoff failed: {end.message}")
    key = request_key((name, 0))
    at = read(notes)
    computed, loaded = at[COMPUTED, key], at[LOADED, key]
    return (loaded - computed) * 1000, (computed - start) * 1000


def read(notes: Path) -> dict[tuple[str, str], float]:
    """Instants by what happened and to which request."""
    lines = [line.split() for line in notes.read_text().splitlines()]
    return {(what, who): float(when) for what, who, when in lines}


def watch(notes: Path) -> None:
    """Has both engines, which are forked from here, write down their instants."""
    computed, results = WorkerHalf.computed, WorkerHalf.results

    def note(what: str, who: str) -> None:
        line = f"{what} {who} {time.monotonic()}\n"
        descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    def watched_computed(half: WorkerHalf, plan: StepPlan) -> None:
        for progress in plan.progress:
            if progress.computed == progress.prompt_blocks:
                note(COMPUTED, request_key(progress.key))
        computed(half, plan)

    def watched_results(
        half: WorkerHalf, plan: StepPlan, finished: Iterable[str]
    ) -> tuple[set[str], set[str], set[str]]:
        told = results(half, plan, finished)
        for request in told[1]:
            note(LOADED, request)
        return told

    WorkerHalf.computed = watched_computed  # type: ignore[method-assign,assignment]
    WorkerHalf.results = watched_results  # type: ignore[method-assign,assignment]
