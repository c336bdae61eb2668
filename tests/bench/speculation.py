"""Speculation: is the text of 200 prompts that of a plain engine, are drafts as good after a
handoff, and what does it gain?

For each method a P and a D of real vLLM get the prompts, by handoffs and then on D alone, which is
one plain engine with that method. The speed is that of text which repeats itself (two tokens are
allowed), tokens per second of all streams together, against an engine without speculation in the
same run, the engines by turns. At the largest batch a third engine drafts nothing above 8 requests.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from common.config import Config, from_mapping
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.messages import Role, Sampling
from common.model.embedded import ensure_embedded_model
from common.process.lifecycle import Tasks
from tests.e2e.eagle_head import alike_first, write_eagle, write_eagle3
from tests.e2e.engine.pair import Pair, Worker, make_config, open_pair
from tests.e2e.prompts import prompts
from tests.e2e.reference import plain_answers

PROMPTS = 200
GREEDY = Sampling(max_tokens=32, temperature=0.0, ignore_eos=True)
COPIES = Sampling(max_tokens=200, temperature=0.0, ignore_eos=True, allowed_token_ids=(101, 102))
BATCHES = (1, 4, 32)
ROUNDS = 5
BATCH_MAX = 8
NGRAM: dict[str, Any] = {"method": "ngram", "ngram_min": 1, "tokens": 4}


def methods(heads: Path) -> dict[str, dict[str, Any]]:
    """The model drafts for itself, and as an EAGLE head, so that drafts are right if the prompt's
    KV is there. `heads`: a folder for the heads."""
    model = {"method": "draft_model", "tokens": 3, "drafter": str(ensure_embedded_model())}
    eagle = {"method": "eagle", "tokens": 3, "drafter": str(write_eagle(heads / "eagle"))}
    eagle3 = {"method": "eagle3", "tokens": 3, "drafter": str(write_eagle3(heads / "eagle3"))}
    handed = {"hand_over": True}
    return {
        "ngram": NGRAM,
        "draft_model": model,
        "draft_model, handed over": model | handed,
        "eagle": eagle,
        "eagle, handed over": eagle | handed,
        "eagle3": eagle3,
        "eagle3, handed over": eagle3 | handed,
    }


def main() -> None:
    texts = [alike_first(text) for text in prompts(PROMPTS)]
    plain = plain_answers(texts, GREEDY.max_tokens)
    print("method                     equal by handoff   on D alone   accepted   alone   ratio")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="baton-") as heads:
        for name, speculation in methods(Path(heads)).items():
            _apart(equality, name, speculation, texts, plain)
    print("tokens/s of text that repeats itself, each ÷ an engine without speculation")
    print("batch    n-grams   n-grams up to 8 requests")
    sys.stdout.flush()
    _apart(speed)


def _apart(work: Callable[..., None], *arguments: Any) -> None:
    """In a process of its own: vLLM forks, and a process that has used UCX must not be forked."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"it ended with status {process.exitcode}")


def configured(run_dir: str, decode: dict[str, dict[str, Any]]) -> Config:
    """With decode workers of these speculations."""
    raw = msgspec.to_builtins(make_config(Path(run_dir)))
    base = raw["decode"].pop("d0")
    for name, speculation in decode.items():
        raw["decode"][name] = base | {"speculation": speculation}
        if speculation.get("hand_over"):
            raw["prefill"]["p0"]["speculation"] = speculation
    return from_mapping({key: raw[key] for key in ("fleet", "model", "prefill", "decode")})


def equality(
    name: str, speculation: dict[str, Any], texts: list[list[int]], plain: list[list[int]]
) -> None:
    with tempfile.TemporaryDirectory(prefix="baton-") as run_dir:
        pair = open_pair(configured(run_dir, {"d0": speculation}))
        asyncio.run(_equality(pair, name, texts, plain))


async def _equality(pair: Pair, name: str, texts: list[list[int]], plain: list[list[int]]) -> None:
    equal, accepted = [0, 0], [0.0, 0.0]
    decode = pair.decode
    async with pair:
        for way in (0, 1):
            before = decode.drafted, decode.accepted
            for prompt, expected in zip(texts, plain, strict=True):
                if way == 0:
                    result, end = await pair.hand_over(prompt, GREEDY, salt=pair.request_id())
                    equal[0] += result.tokens == expected and not end.error
                else:
                    equal[1] += (await pair.alone(prompt, GREEDY)).tokens == expected
            accepted[way] = (decode.accepted - before[1]) / (decode.drafted - before[0])
    for worker in (pair.decode, pair.prefill):
        await worker.engine.close()
    ratio = accepted[0] / accepted[1]
    of = len(texts)
    print(
        f"{name:<26}{equal[0]:>8} of {of}{equal[1]:>8} of {of}"
        f"{accepted[0]:11.3f}{accepted[1]:8.3f}{ratio:8.3f}"
    )


def speed() -> None:
    with tempfile.TemporaryDirectory(prefix="baton-") as run_dir:
        switched = NGRAM | {"batch_max": BATCH_MAX}
        speculations = {"d0": {"method": "none"}, "d1": NGRAM, "d2": switched}
        config = configured(run_dir, speculations)
        engines = [open_engine(config, Role.DECODE, name, f"i-{name}") for name in speculations]
        asyncio.run(_speed([Worker(engine) for engine in engines]))


async def _speed(workers: list[Worker]) -> None:
    tasks = Tasks()
    for number, worker in enumerate(workers):
        tasks.start(f"listen-{number}", worker.listen())
    for batch in BATCHES:
        rates: list[list[float]] = [[] for _ in workers]
        for number in range(ROUNDS + 1):
            for worker, found in zip(workers, rates, strict=True):
                rate = await _rate(worker, batch, f"{batch}.{number}")
                if number:  # the first warms up
                    found.append(rate)
        plain, always, switched = map(median, rates)
        print(f"{batch:>5}{always / plain:11.2f}{switched / plain:11.2f}")
        sys.stdout.flush()
    await tasks.cancel_all()
    for worker in workers:
        await worker.engine.close()


async def _rate(worker: Worker, batch: int, name: str) -> float:
    """Tokens per second of so many streams together."""
    texts = prompts(BATCHES[-1])[:batch]
    begun = time.monotonic()
    results = [
        await worker.add(
            EngineRequest(f"s{name}.{at}", 0, Role.DECODE, text[:300], COPIES, None, name)
        )
        for at, text in enumerate(texts)
    ]
    for result in results:
        await asyncio.wait_for(result.done.wait(), 120)
    return batch * COPIES.max_tokens / (time.monotonic() - begun)
