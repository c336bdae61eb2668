"""Unlike partners on real vLLM: each prefill layout against each decode layout, token for token.

A layout is a number of ranks, a block size and an element type; vLLM's kernels for CPUs take no
blocks of 16 tokens. Each cell hands over 200 prompts of the lengths that handoffs treat
differently, one at a time, and compares D's answers with those of D alone and with those after a
handoff from a worker of D's own layout, which travels unconverted. In bfloat16 the second is the
fair comparison: D alone computes the last token of a prompt together with the others and rounds
otherwise. It has 64 cells. On two cores they take hours, because ranks wait for each other; with 16
prompts (`BATON_BENCH_PROMPTS`) three of the eight D took nine minutes. `BATON_BENCH_RANKS=1` leaves
out the workers of two ranks.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.engine.open import open_engine
from common.engine.port import Engine
from common.messages import Role
from tests.e2e.engine.pair import Pair, make_config
from tests.e2e.prompts import prompts

PROMPTS = int(os.environ.get("BATON_BENCH_PROMPTS", "200"))
RANKS = int(os.environ.get("BATON_BENCH_RANKS", "2"))
EDGES = (2, 16, 17, 18, 33, 34, 48, 50, 127, 128, 129, 130, 2047, 2050)
Answers = list[list[int]]


class Layout(NamedTuple):
    """Of the KV of one engine."""

    ranks: int
    block_tokens: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.ranks} x {self.block_tokens:>3} {self.dtype:<8}"

    @property
    def name(self) -> str:
        """Short, for names of sockets."""
        return f"{self.ranks}x{self.block_tokens}{self.dtype[0]}"


LAYOUTS = [
    Layout(ranks, tokens, dtype)
    for dtype in ("float32", "bfloat16")
    for tokens in (32, 128)
    for ranks in range(1, RANKS + 1)
]


def main() -> None:
    texts = prompts(PROMPTS, edges=EDGES)
    with tempfile.TemporaryDirectory() as folder:
        prefills = {layout: _opened(Path(folder), Role.PREFILL, layout) for layout in LAYOUTS}
        print(f"of {len(texts)} prompts, equal: the first token and the answer to those of D")
        print("alone, and the answer to that after a handoff from a worker of D's own layout")
        print("P                D                 first token   D alone   own layout")
        with asyncio.Runner() as runner:
            try:
                for layout in LAYOUTS:  # one D at a time: all would not fit into a small host
                    decode = _opened(Path(folder), Role.DECODE, layout)
                    runner.run(_column(prefills, layout, decode, texts))
            finally:
                for engine in prefills.values():
                    runner.run(engine.close())


def _opened(folder: Path, role: Role, layout: Layout) -> Engine:
    """Each in a folder of its own, because all have the name of their role."""
    run_dir = folder / f"{role.value[0]}{layout.name}"
    run_dir.mkdir(0o700)
    engine: dict[str, Any] = {
        "args": {"tensor_parallel_size": layout.ranks},
        "block_tokens": layout.block_tokens,
        "dtype": layout.dtype,
        "kv_cache_mib": 96,
    }
    name = "p0" if role is Role.PREFILL else "d0"
    return open_engine(make_config(run_dir, engine, compression="auto"), role, name, f"inc-{name}")


async def _column(
    prefills: dict[Layout, Engine], own_layout: Layout, decode: Engine, texts: Sequence[list[int]]
) -> None:
    """All prefill layouts against one decode layout, its own first."""
    own: Answers = []
    alone: Answers = []
    for layout in sorted(LAYOUTS, key=lambda layout: layout != own_layout):
        cell = f"{layout.name}-{own_layout.name}"
        pair = Pair(prefills[layout], decode, name=cell)
        async with pair:
            alone = alone or [(await pair.alone(text)).tokens for text in texts]
            answers = await _handed_over(pair, texts, cell)
        own = own or answers
        firsts = sum(ours[0] == theirs[0] for ours, theirs in zip(answers, alone, strict=True))
        counts = (firsts, _equal(answers, alone), _equal(answers, own))
        equal = f"{counts[0]:>11}   {counts[1]:>7}   {counts[2]:>10}"
        print(f"{layout} {own_layout}  {equal}", flush=True)
    await decode.close()


async def _handed_over(pair: Pair, texts: Sequence[list[int]], salt: str) -> Answers:
    """Raises RuntimeError if one did not come by the handoff."""
    found = []
    for text in texts:
        result, end = await pair.hand_over(text, salt=salt)
        if end.error or result.cached != len(text) - 1:
            raise RuntimeError(f"{salt}, {len(text)} tokens, {result.cached} came: {end.message}")
        found.append(result.tokens)
    return found


def _equal(ours: Answers, theirs: Answers) -> int:
    return sum(one == other for one, other in zip(ours, theirs, strict=True))
