"""The pause of a planned move by the length of the context, with the KV copied ahead and without:
real vLLM, a model with random weights and 32 KiB of KV a token. The text is compared with that of
the same prompt without a move.

A row is of `MOVES` streams, each with a prompt of its own, because what a worker had once it need
not get again. The added gap is the pause between the last token of the one worker and the first of
the other, minus the usual one of the same stream. Beside it stands the longest pause of the stream
that did not move, which is what the machine does by itself. Both streams find their prompt in the
cache of the worker where they begin: in bfloat16 a prompt that is computed whole and one of which
only the tail is computed may go on with different texts, in vLLM alone as well.
`BATON_BENCH_CONTEXTS` names other lengths.
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
DRAINS = int(os.environ.get("BATON_BENCH_DRAINS", "4"))
TOKENS, LEFT_TOKENS, LEAVE_AT = 400, 480, 40
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
    #: Of each token.
    times: list[float] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def gaps_ms(self) -> list[float]:
        """Sorted."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return sorted((after - before) * 1000 for before, after in pairs)

    def added_ms(self, before: int) -> float:
        """What the pause after so many tokens has over the usual one."""
        pause = self.times[before] - self.times[before - 1]
        return pause * 1000 - statistics.median(self.gaps_ms)


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
                for turn in range(DRAINS):
                    asyncio.run(leave(running, mode, turn))
    for context in CONTEXTS:
        ahead, after = (statistics.median(rows[mode, context]) for mode in MODES)
        print(f"{context} tokens: ratio {ahead / after:.2f}")


async def measure(running: Fleet, mode: str, context: int) -> list[float]:
    """The added gap of each move, in milliseconds."""
    draw, added, again, moved_bytes, undisturbed = random.Random(context), [], 0, [], []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as client:
        await read(running, client, text(draw, context), Stream())
        for _ in range(MOVES):
            prompt, stream, plain = text(draw, context), Stream(), Stream()
            await read(running, client, prompt, Stream(), 1)
            await read(running, client, prompt, plain)
            reading = read(running, client, prompt, stream)
            await asyncio.gather(reading, asyncio.to_thread(move, running, stream))
            assert stream.tokens == plain.tokens, "the text is another one"
            last = running.ctl("explain", stream.request_id)["attempts"][-1]
            assert last["move"]["recomputed_tokens"] == 1, last["sentences"]
            again += last["move"]["recomputed_tokens"]
            moved_bytes.append(last["move"]["bytes"] >> 10)
            added.append(stream.added_ms(last["prompt_tokens"] - context))
            undisturbed.append(plain.gaps_ms[-1] - statistics.median(plain.gaps_ms))
    added.sort()
    print(
        f"{mode}, {context} tokens: added gap p50 {statistics.median(added):.0f} ms, "
        f"worst of {MOVES} {added[-1]:.0f} ms (longest without a move: p50 "
        f"{statistics.median(undisturbed):.0f}, worst {max(undisturbed):.0f} ms); in the pause "
        f"{statistics.median(moved_bytes):.0f} KiB; {again} tokens computed again, text equal",
        flush=True,
    )
    return added


async def leave(running: Fleet, mode: str, turn: int) -> None:
    """Eight of sixteen streams leave one of two workers. They began one after the other, so that
    none waits for the prompts of the others. No turn has a prompt of another."""
    draw, streams = random.Random(f"drain {turn}"), [Stream() for _ in range(16)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as client:

        async def one_after_another(index: int) -> None:
            if index:
                await streams[index - 1].begun.wait()
            await read(running, client, text(draw, 1000), streams[index], LEFT_TOKENS)

        drained = asyncio.to_thread(drain, running, streams)
        seconds, *_ = await asyncio.gather(drained, *map(one_after_another, range(16)))
    running.ctl("resume", "d0")
    pauses = []
    for stream in streams:
        last = running.ctl("explain", stream.request_id)["attempts"][-1]
        if last["move"] is not None:
            before = last["prompt_tokens"] - 1000
            pauses.append((stream.times[before] - stream.times[before - 1]) * 1000)
    print(
        f"{mode}: {len(pauses)} streams of 1,000 tokens left a drained worker in {seconds:.2f} s, "
        f"pause p50 {statistics.median(pauses):.0f} ms, longest {max(pauses):.0f} ms; usual gap "
        f"{statistics.median(statistics.median(s.gaps_ms) for s in streams):.0f} ms",
        flush=True,
    )


def drain(running: Fleet, streams: list[Stream]) -> float:
    """Seconds until d0 has none. It is asked seldom: to ask takes a core of two some 20 ms."""
    wait_until("all stream", lambda: min(len(s.tokens) for s in streams) >= LEAVE_AT, 120)
    began = time.monotonic()
    running.ctl("drain", "d0")
    wait_until("d0 is empty", lambda: not held(running), 30, every=0.1)
    return time.monotonic() - began


def move(running: Fleet, stream: Stream) -> None:
    wait_until("it streams", lambda: len(stream.tokens) >= LEAVE_AT, 120)
    (row,) = running.ctl("requests")
    running.ctl("move", row["request_id"], f"to={'d1' if row['decode'] == 'd0' else 'd0'}")


def text(draw: random.Random, tokens: int) -> list[int]:
    return [draw.randint(10, 250) for _ in range(tokens)]


async def read(
    running: Fleet,
    client: aiohttp.ClientSession,
    prompt: list[int],
    stream: Stream,
    tokens: int = TOKENS,
) -> None:
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": tokens,
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
            stream.times += [time.monotonic()] * len(ids)
            stream.begun.set()
