"""What copies of running streams give and cost: `[kv.checkpoint] policy = "all"` against "none", on
real vLLM with the model of `moves.py`, in turns.

The gap is the longest pause of a stream of 4,000 tokens (`BATON_BENCH_CONTEXT`) whose worker is
killed with SIGKILL. The tokens a second are those of `STREAMS` streams that nothing disturbs.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from common.model.embedded import ensure_embedded_model
from tests.bench.moves import RECIPE, STORE, Stream, read, text
from tests.rigs.fleet import Fleet, fleet, wait_until

CONTEXT = int(os.environ.get("BATON_BENCH_CONTEXT", "4000"))
DEATHS, ROUNDS, STREAMS = 3, 3, 6
TOKENS, KILL_AT = 160, 60
STEADY_CONTEXT, STEADY_TOKENS = 200, 300
FLOAT32 = STORE | {"BATON_MODEL__DTYPE": "float32"}
"""In bfloat16 what is computed as a prompt differs from what was computed token by token."""
MODES = {
    "copies": FLOAT32 | {"BATON_KV__CHECKPOINT__POLICY": "all"},
    "none": FLOAT32,
}


@dataclass
class Rows:
    """Of one mode."""

    gaps: list[float] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


def main() -> None:
    found = {mode: Rows() for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        model = ensure_embedded_model(Path(folder), RECIPE)
        flags = ("--prefill", "0", "--mode", "replicated", "--decode", "2", "--name", "m")
        with (
            fleet(*flags, "--model", str(model), env=MODES["copies"]) as copying,
            fleet(*flags, "--model", str(model), env=MODES["none"]) as plain,
        ):
            fleets = {"copies": copying.wait_ready(), "none": plain.wait_ready()}
            for round_ in range(ROUNDS + 1):
                for mode, running in fleets.items():
                    rate = asyncio.run(steady(running, round_))
                    found[mode].rates += [rate] if round_ else []
            for round_ in range(DEATHS):
                for mode, running in fleets.items():
                    asyncio.run(die(running, found[mode], round_))
    for mode, rows in found.items():
        print(
            f"{mode}: {STREAMS} streams at {', '.join(f'{rate:.0f}' for rate in rows.rates)} "
            f"tokens/s; a worker dies at {CONTEXT} tokens: gap p50 "
            f"{statistics.median(rows.gaps):.0f} ms, longest {max(rows.gaps):.0f} ms, "
            f"{max(rows.again)} tokens computed again"
        )
    copies, none = found["copies"], found["none"]
    gap = statistics.median(copies.gaps) / statistics.median(none.gaps)
    rate = statistics.median(copies.rates) / statistics.median(none.rates)
    print(f"with copies against without: gap ratio {gap:.2f}, tokens/s ratio {rate:.3f}")


async def steady(running: Fleet, seed: int) -> float:
    """Tokens a second of streams that nothing disturbs, each with a prompt of its own."""
    draw, streams = random.Random(f"steady {seed}"), [Stream() for _ in range(STREAMS)]
    began = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as client:
        prompts = [text(draw, STEADY_CONTEXT) for _ in streams]
        pairs = zip(prompts, streams, strict=True)
        await asyncio.gather(
            *(read(running, client, prompt, one, STEADY_TOKENS) for prompt, one in pairs)
        )
    return STREAMS * STEADY_TOKENS / (time.monotonic() - began)


async def die(running: Fleet, rows: Rows, seed: int) -> None:
    """The text after the death is that of the same prompt without one."""
    prompt, stream, again = text(random.Random(seed), CONTEXT), Stream(), Stream()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as client:
        reading = read(running, client, prompt, stream, TOKENS)
        await asyncio.gather(reading, asyncio.to_thread(kill, running, stream))
        await asyncio.to_thread(wait_until, "both are ready", lambda: ready(running), 120)
        await read(running, client, prompt, again, TOKENS)
    last = running.ctl("explain", stream.request_id)["attempts"][-1]
    rows.gaps.append(stream.gaps_ms[-1])
    rows.again.append(last["prompt_tokens"] - last["cached_tokens"]["decode"])
    assert stream.tokens == again.tokens, "the text is another one"
    print(f"gap {rows.gaps[-1]:.0f} ms, text equal: {last['sentences'][0]}", flush=True)


def kill(running: Fleet, stream: Stream) -> None:
    wait_until("it streams", lambda: len(stream.tokens) >= KILL_AT, 120)
    (row,) = running.ctl("requests")
    running.children()[row["decode"]].kill()


def ready(running: Fleet) -> bool:
    return [row["state"] for row in running.ctl("workers")].count("ready") == 2
