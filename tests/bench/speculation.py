"""Speculation: is the text of 200 prompts that of a plain engine, are drafts as good after a
handoff, and what does it gain?

For each method a P and a D of real vLLM get the prompts, eight at a time, by handoffs, and another
pair on its D alone, which is one plain engine with that method. MTP has a model of its own, of one
layer.
`suffix` is tried where its package is. `BATON_BENCH_PARTS` names the methods that are tried,
`speed` and `speed-large`; all by default. The speed is that of text which repeats itself (two
tokens are allowed), tokens per second of all streams together, against an engine without
speculation: the engines by turns, forwards and back, a ratio of each round, and their median. The
same is told per second of CPU, for others may use the cores. A third engine drafts nothing above 8
requests. A fourth does not speculate either: what it differs by from 1, two alike differ by.
"""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import operator
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil

from common.config import Config, from_mapping
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.messages import Role, Sampling
from common.model.embedded import ensure_embedded_model
from common.process.lifecycle import Tasks
from tests.bench.store import PARAMETERS
from tests.e2e.draft_heads import alike_first, write_eagle, write_eagle3, write_mtp
from tests.e2e.engine.pair import Pair, Result, Worker, make_config, open_pair
from tests.e2e.prompts import prompts
from tests.e2e.reference import plain_answers

PROMPTS, AT_ONCE = 200, 8
GREEDY = Sampling(max_tokens=32, temperature=0.0, ignore_eos=True)
COPIES = Sampling(max_tokens=200, temperature=0.0, ignore_eos=True, allowed_token_ids=(101, 102))
BATCHES = (1, 4, 32)
BATCH_MAX = 8
SPEED = "speed"
LARGE = "speed-large"
Ask = Callable[[Pair, list[int]], Awaitable[Result]]
MTP: dict[str, Any] = {"method": "mtp", "tokens": 3}
NGRAM: dict[str, Any] = {"method": "ngram", "ngram_min": 1, "tokens": 4}


def methods(heads: Path) -> dict[str, dict[str, Any]]:
    """The model drafts for itself, and as an EAGLE head, so that drafts are right if the prompt's
    KV is there. `suffix` is tried where its package is. `heads`: a folder for the heads."""
    model = {"method": "draft_model", "tokens": 3, "drafter": str(ensure_embedded_model())}
    eagle = {"method": "eagle", "tokens": 3, "drafter": str(write_eagle(heads / "eagle"))}
    eagle3 = {"method": "eagle3", "tokens": 3, "drafter": str(write_eagle3(heads / "eagle3"))}
    handed = {"hand_over": True}
    found = importlib.util.find_spec("arctic_inference") is not None
    return ({"suffix": {"method": "suffix", "tokens": 4}} if found else {}) | {
        "ngram": NGRAM,
        "draft_model": model,
        "draft_model-handed": model | handed,
        "eagle": eagle,
        "eagle-handed": eagle | handed,
        "eagle3": eagle3,
        "eagle3-handed": eagle3 | handed,
        "mtp": MTP,
        "mtp-handed": MTP | handed,
    }


def main() -> None:
    parts = os.environ.get("BATON_BENCH_PARTS", "")
    with tempfile.TemporaryDirectory(prefix="baton-") as heads:
        known = methods(Path(heads))
        every = [*known, SPEED, LARGE]
        chosen = parts.split(",") if parts else every
        if wrong := set(chosen) - {*every}:
            raise SystemExit(f"no part {wrong.pop()!r}; there are: {', '.join(every)}")
        tried = {name: known[name] for name in chosen if name in known}
        if tried:
            equality_of_all(tried, write_mtp(Path(heads) / "mtp"))
    if SPEED in chosen:
        speed_of_all("the embedded model", str(ensure_embedded_model()), rounds=9, tokens=200)
    if LARGE in chosen:
        with tempfile.TemporaryDirectory(prefix="baton-") as folder:
            model = str(ensure_embedded_model(Path(folder), PARAMETERS))
            speed_of_all("a hundred million weights", model, rounds=3, tokens=60)


def equality_of_all(tried: dict[str, dict[str, Any]], with_mtp: Path) -> None:
    texts = [alike_first(text) for text in prompts(PROMPTS)]
    models = {name: _model(speculation, with_mtp) for name, speculation in tried.items()}
    plain = {
        model: plain_answers(texts, GREEDY.max_tokens, model=Path(model))
        for model in set(models.values())
    }
    print("method                     equal by handoff   on D alone   accepted   alone   ratio")
    sys.stdout.flush()
    of = len(texts)
    for name, speculation in tried.items():
        model = models[name]
        # In processes of their own: `suffix` learns from what it has answered.
        handed, after = _apart(equality, _handed, speculation, model, texts)
        alone, plainly = _apart(equality, _alone, speculation, model, texts)
        equal = [sum(map(operator.eq, found, plain[model])) for found in (handed, alone)]
        print(
            f"{name:<26}{equal[0]:>8} of {of}{equal[1]:>8} of {of}"
            f"{after:11.3f}{plainly:8.3f}{after / plainly:8.3f}"
        )
        sys.stdout.flush()


def _model(speculation: dict[str, Any], with_mtp: Path) -> str:
    return str(with_mtp if speculation["method"] == "mtp" else ensure_embedded_model())


def speed_of_all(name: str, model: str, *, rounds: int, tokens: int) -> None:
    print(f"{name}: tokens/s of text that repeats itself, each ÷ an engine without speculation")
    print("batch    n-grams     up to 8        none   by CPU: n-grams, up to 8 requests, none")
    sys.stdout.flush()
    _apart(speed, model, rounds, tokens)


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """In a process of its own: vLLM forks, and a process that has used UCX must not be forked."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        return other.submit(work, *arguments).result()


def configured(
    run_dir: str, decode: dict[str, dict[str, Any]], model: str = "baton-tiny"
) -> Config:
    """With decode workers of these speculations."""
    raw = msgspec.to_builtins(make_config(Path(run_dir), model=model))
    base = raw["decode"].pop("d0")
    for name, speculation in decode.items():
        raw["decode"][name] = base | {"speculation": speculation}
        if speculation.get("hand_over"):
            raw["prefill"]["p0"]["speculation"] = speculation
    return from_mapping({key: raw[key] for key in ("fleet", "model", "prefill", "decode")})


def equality(
    ask: Ask, speculation: dict[str, Any], model: str, texts: list[list[int]]
) -> tuple[list[list[int]], float]:
    """The answers, and the share of drafted tokens that was accepted."""
    with tempfile.TemporaryDirectory(prefix="baton-") as run_dir:
        pair = open_pair(configured(run_dir, {"d0": speculation}, model))
        return asyncio.run(_equality(ask, pair, texts))


async def _equality(ask: Ask, pair: Pair, texts: list[list[int]]) -> tuple[list[list[int]], float]:
    results: list[Result] = []
    async with pair:
        for at in range(0, len(texts), AT_ONCE):
            some = texts[at : at + AT_ONCE]
            results += await asyncio.gather(*(ask(pair, one) for one in some))
    for worker in (pair.decode, pair.prefill):
        await worker.engine.close()
    return [one.tokens for one in results], pair.decode.accepted / pair.decode.drafted


async def _handed(pair: Pair, text: list[int]) -> Result:
    """Without tokens if its KV did not come."""
    result, end = await pair.hand_over(text, GREEDY, salt=pair.request_id())
    return Result() if end.error else result


async def _alone(pair: Pair, text: list[int]) -> Result:
    return await pair.alone(text, GREEDY)


def speed(model: str, rounds: int, tokens: int) -> None:
    with tempfile.TemporaryDirectory(prefix="baton-") as run_dir:
        switched = NGRAM | {"batch_max": BATCH_MAX}
        none = {"method": "none"}
        speculations = {"d0": none, "d1": NGRAM, "d2": switched, "d3": none}
        config = configured(run_dir, speculations, model)
        engines = [open_engine(config, Role.DECODE, name, f"i-{name}") for name in speculations]
        asyncio.run(_speed([Worker(engine) for engine in engines], rounds, tokens))


async def _speed(workers: list[Worker], rounds: int, tokens: int) -> None:
    tasks = Tasks()
    for number, worker in enumerate(workers):
        tasks.start(f"listen-{number}", worker.listen())
    for batch in BATCHES:
        of = [(engine, way) for way in (0, 1) for engine in range(1, len(workers))]
        ratios: list[list[float]] = [[] for _ in of]
        for number in range(rounds + 1):
            order = range(len(workers)) if number % 2 else reversed(range(len(workers)))
            rate = {
                at: await _rate(workers[at], batch, tokens, f"{batch}.{number}") for at in order
            }
            if number:  # the first warms up
                for found, (engine, way) in zip(ratios, of, strict=True):
                    found.append(rate[engine][way] / rate[0][way])
        print(f"{batch:>5}" + "".join(f"{median(found):11.2f}" for found in ratios))
        sys.stdout.flush()
    await tasks.cancel_all()
    for worker in workers:
        await worker.engine.close()


async def _rate(worker: Worker, batch: int, tokens: int, name: str) -> tuple[float, float]:
    """Tokens per second of so many streams together, and per second of CPU of all engines, of which
    the others are idle."""
    texts = prompts(BATCHES[-1])[:batch]
    sampling = msgspec.structs.replace(COPIES, max_tokens=tokens)
    begun, used = time.monotonic(), _cpu_seconds()
    results = [
        await worker.add(
            EngineRequest(f"s{name}.{at}", 0, Role.DECODE, text[:300], sampling, None, name)
        )
        for at, text in enumerate(texts)
    ]
    for result in results:
        await asyncio.wait_for(result.done.wait(), 120)
    made = batch * tokens
    return made / (time.monotonic() - begun), made / (_cpu_seconds() - used)


def _cpu_seconds() -> float:
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(one.user + one.system for one in times)
