"""How soon an abort frees both engines of a handoff, by the phase it comes in.

The engines, simulated and real vLLM, are driven as the worker daemons drive them. The clock runs
from the abort on both to the moment when neither holds KV. vLLM frees between its steps only, so
there an abort waits for the step in progress: up to one prefill chunk on P, and a poll or a decode
step on D. Last, clients of a whole simulated fleet hang up at random moments, and afterwards every
worker must be empty; how soon is not told there, for the workers' beats come twice a second only.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from common.config import from_mapping
from common.messages import Sampling
from tests.e2e.engine.pair import ENGINE, Pair, open_pair, until
from tests.rigs.fleet import Fleet, fleet, wait_until

TRIES = {"sim": 200, "vllm": 200}
CHUNK = 512
"""Tokens of a step: a prompt takes several, so that it can be caught at it."""
TARGET_MS = 250.0
PROMPT = 1500
LONG = Sampling(max_tokens=400, temperature=0.0, ignore_eos=True)
HANG_UPS = 200
EMPTY_S = 10.0

Reach = Callable[[Pair, list[int], str], Awaitable[str]]
"""Brings a new request, with this prompt and salt, to the phase; returns its id."""


async def waiting(pair: Pair, prompt: list[int], salt: str) -> str:
    """D holds blocks and has asked; P has not heard of the request."""
    _, at_d = pair.requests(prompt, LONG, salt)
    await pair.decode.add(at_d)
    await until(lambda: pair.decode.engine.load().kv_used > 0)
    return at_d.request_id


async def prefilling(pair: Pair, prompt: list[int], salt: str) -> str:
    at_p, at_d = pair.requests(prompt, LONG, salt)
    await pair.prefill.add(at_p)
    await pair.decode.add(at_d)
    await until(lambda: pair.prefill.engine.load().kv_used > 0)
    return at_p.request_id


async def moving(pair: Pair, prompt: list[int], salt: str) -> str:
    """P has computed all; the last blocks are on their way, or just were."""
    at_p, at_d = pair.requests(prompt, LONG, salt)
    result = await pair.prefill.add(at_p)
    await pair.decode.add(at_d)
    await asyncio.wait_for(result.done.wait(), 30)
    return at_p.request_id


async def held(pair: Pair, prompt: list[int], salt: str) -> str:
    """P holds the prompt on a lease and nobody asks."""
    at_p, _ = pair.requests(prompt, LONG, salt)
    result = await pair.prefill.add(at_p)
    await asyncio.wait_for(result.done.wait(), 30)
    return at_p.request_id


async def decoding(pair: Pair, prompt: list[int], salt: str) -> str:
    at_p, at_d = pair.requests(prompt, LONG, salt)
    await pair.prefill.add(at_p)
    result = await pair.decode.add(at_d)
    await until(lambda: bool(result.tokens), 30)
    return at_d.request_id


PHASES: dict[str, Reach] = {
    "waiting": waiting,
    "prefilling": prefilling,
    "moving": moving,
    "held": held,
    "decoding": decoding,
}


def main() -> None:
    print(f"engine    phase       tries  p50 ms  p99 ms   worst  (target {TARGET_MS:.0f} ms)")
    for engine in TRIES:
        process = multiprocessing.get_context("spawn").Process(target=play, args=(engine,))
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{engine}: it ended with status {process.exitcode}")
    with fleet("--engine", "sim") as running:
        running.wait_ready()
        print(hang_ups(running))
        running.stop()


def play(engine: str) -> None:
    """In a process of its own: vLLM forks, and a process that has used UCX must not be forked."""
    with tempfile.TemporaryDirectory(prefix="baton-") as run_dir:
        asyncio.run(abort_all(opened(engine, Path(run_dir)), engine))


def opened(engine: str, run_dir: Path) -> Pair:
    worker = {"engine": {**ENGINE, "kind": engine, "max_num_batched_tokens": CHUNK}}
    return open_pair(
        from_mapping(
            {
                "fleet": {"run_dir": str(run_dir)},
                "model": {"path": "baton-tiny", "dtype": "float32", "max_model_len": 4096},
                "prefill": {"p0": worker},
                "decode": {"d0": worker},
            }
        )
    )


async def abort_all(pair: Pair, engine: str) -> None:
    async with pair:
        for name, reach in PHASES.items():
            tries = TRIES[engine]
            times = sorted([await aborted(pair, reach, f"{name}{i}") for i in range(tries)])
            print(
                f"{engine:9} {name:11} {tries:5d} {statistics.median(times):7.1f} "
                f"{times[max(0, int(tries * 0.99) - 1)]:7.1f} {times[-1]:7.1f}"
            )
    await pair.decode.engine.close()
    await pair.prefill.engine.close()


async def aborted(pair: Pair, reach: Reach, salt: str) -> float:
    """Milliseconds until both engines hold no KV. Raises TimeoutError when one never lets go."""
    draw = random.Random(salt)
    request_id = await reach(pair, [draw.randint(10, 250) for _ in range(PROMPT)], salt)
    start = time.monotonic()
    await pair.decode.engine.abort(request_id, 0)
    await pair.prefill.engine.abort(request_id, 0)
    await pair.prefill.empty(EMPTY_S)
    await pair.decode.empty(EMPTY_S)
    return (time.monotonic() - start) * 1000


def hang_ups(running: Fleet) -> str:
    """Clients that leave at random moments, a few at a time; then nobody may hold anything."""
    dice = random.Random(1)
    open_connections: list[http.client.HTTPConnection] = []
    for number in range(HANG_UPS):
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        prompt = f"{number} " + "All happy families are alike. " * dice.randint(1, 60)
        body = {"model": "baton-tiny", "prompt": prompt, "max_tokens": 300, "stream": True}
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
        )
        open_connections.append(connection)
        time.sleep(dice.random() * 0.02)
        if len(open_connections) > dice.randint(0, 8):
            open_connections.pop(dice.randrange(len(open_connections))).close()
    for connection in open_connections:
        connection.close()
    start = time.monotonic()

    def empty() -> bool:
        keys = ("requests", "kv_tokens_promised", "kv_tokens_foreign", "kv_used", "running")
        workers = running.ctl("workers")
        return len(workers) == 2 and not any(worker[key] for worker in workers for key in keys)

    wait_until("all workers are empty", empty, EMPTY_S)
    seconds = time.monotonic() - start
    return f"fleet: {HANG_UPS} clients hung up; both workers empty {seconds:.1f} s after the last"
