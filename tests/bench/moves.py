"""The pause of a planned move by the length of the context, with the KV copied ahead and without:
real vLLM, a model with random weights and 32 KiB of KV a token. The text is compared with that of
the same prompt without a move.

A row is of `MOVES` streams, each with a prompt of its own, because what a worker had once it need
not get again. The added gap is the longest pause between two tokens minus the usual one of the same
stream. `BATON_BENCH_CONTEXTS` names other lengths.
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
from common.model.weights import Recipe
from tests.e2e.test_moves import chunks, held
from tests.rigs.fleet import Fleet, fleet, wait_until

CONTEXTS = [int(n) for n in os.environ.get("BATON_BENCH_CONTEXTS", "200,1000,4000,7500").split(",")]
MOVES = int(os.environ.get("BATON_BENCH_MOVES", "8"))
TOKENS, LEAVE_AT = 480, 40
RECIPE = Recipe(kv_heads=8, head_dim=128)
STORE = {
    "BATON_KV__STORE__RAM_MIB": "1024",
    "BATON_ENGINE__KV_CACHE_MIB": "1024",
    # A step that computes thousands of tokens takes this model more than a second on a CPU.
    "BATON_ROUTER__LIVENESS__STALL_MS": "20000",
}
MODES = {"copied ahead": STORE | {"BATON_KV__COPY_AHEAD_MS": "4000"}, "after it left": STORE}


@dataclass
class Stream:
    """What one client got, and when."""

    request_id: str = ""
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def gaps_ms(self) -> list[float]:
        """Sorted."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return sorted((after - before) * 1000 for before, after in pairs)

    @property
    def added_ms(self) -> float:
        return self.gaps_ms[-1] - statistics.median(self.gaps_ms)


def main() -> None:
    rows: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = ensure_embedded_model(Path(folder), RECIPE)
        for mode, env in MODES.items():
            flags = ("--prefill", "0", "--mode", "replicated", "--decode", "2")
            with fleet(*flags, "--model", str(model), "--name", "m", env=env) as running:
                running.wait_ready()
                for context in CONTEXTS:
                    rows[mode, context] = asyncio.run(measure(running, mode, context))
                asyncio.run(leave(running, mode))
    for context in CONTEXTS:
        ahead, after = (statistics.median(rows[mode, context]) for mode in MODES)
        print(f"{context} tokens: ratio {ahead / after:.2f}")


async def measure(running: Fleet, mode: str, context: int) -> list[float]:
    """The added gap of each move, in milliseconds."""
    draw, added, again, moved_bytes = random.Random(context), [], 0, []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as client:
        await read(running, client, text(draw, context), Stream())
        for _ in range(MOVES):
            prompt, stream, plain = text(draw, context), Stream(), Stream()
            reading = read(running, client, prompt, stream)
            await asyncio.gather(reading, asyncio.to_thread(move, running, stream))
            await read(running, client, prompt, plain)
            assert stream.tokens == plain.tokens, "the text is another one"
            last = running.ctl("explain", stream.request_id)["attempts"][-1]
            assert last["move"]["recomputed_tokens"] == 1, last["sentences"]
            again += last["move"]["recomputed_tokens"]
            moved_bytes.append(last["move"]["bytes"] >> 10)
            added.append(stream.added_ms)
    added.sort()
    print(
        f"{mode}, {context} tokens: added gap p50 {statistics.median(added):.0f} ms, "
        f"worst of {MOVES} {added[-1]:.0f} ms; in the pause {statistics.median(moved_bytes):.0f} "
        f"KiB; {again} tokens computed again, text equal",
        flush=True,
    )
    return added


async def leave(running: Fleet, mode: str) -> None:
    """Eight streams leave the worker that has most of sixteen."""
    draw, streams = random.Random(9), [Stream() for _ in range(16)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as client:
        reading = [read(running, client, text(draw, 1000), stream) for stream in streams]
        drained = asyncio.to_thread(drain, running, streams)
        seconds, *_ = await asyncio.gather(drained, *reading)
    running.ctl("resume", "d0")
    moved = [s for s in streams if len(running.ctl("explain", s.request_id)["attempts"]) > 1]
    print(
        f"{mode}: {len(moved)} streams of 1,000 tokens left a drained worker in {seconds:.2f} s, "
        f"longest gap {max(stream.gaps_ms[-1] for stream in moved):.0f} ms",
        flush=True,
    )


def drain(running: Fleet, streams: list[Stream]) -> float:
    """Seconds until d0 has none."""
    wait_until("all stream", lambda: min(len(s.tokens) for s in streams) >= LEAVE_AT, 120)
    began = time.monotonic()
    running.ctl("drain", "d0")
    wait_until("d0 is empty", lambda: not held(running), 30)
    return time.monotonic() - began


def move(running: Fleet, stream: Stream) -> None:
    wait_until("it streams", lambda: len(stream.tokens) >= LEAVE_AT, 120)
    (row,) = running.ctl("requests")
    running.ctl("move", row["request_id"], f"to={'d1' if row['decode'] == 'd0' else 'd0'}")


def text(draw: random.Random, tokens: int) -> list[int]:
    return [draw.randint(10, 250) for _ in range(tokens)]


async def read(
    running: Fleet, client: aiohttp.ClientSession, prompt: list[int], stream: Stream
) -> None:
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }
    async with client.post(f"{running.url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for chunk in chunks(answer):
            stream.request_id = chunk["id"].split("-", 1)[1]
            assert "error" not in chunk, chunk
            ids = chunk["choices"][0].get("token_ids") or []
            stream.tokens += ids
            stream.times += [time.monotonic()] if ids else []
