"""The prompts that equality is tested on: every length class that the handoff treats
differently."""

from __future__ import annotations

import random

BLOCK = 128
CHUNK = 2048
LENGTH_MAX = 3000
FIRST_ID, LAST_ID = 10, 250

EDGES = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1)
CHUNK_EDGES = (CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + BLOCK, LENGTH_MAX - 1, LENGTH_MAX)


def shared_prefix(seed: int = 8) -> list[int]:
    """What a family of the prompts begins with: three whole blocks."""
    draw = random.Random(seed)
    return [draw.randint(FIRST_ID, LAST_ID) for _ in range(3 * BLOCK)]


def prompts(
    count: int, seed: int = 7, edges: tuple[int, ...] = (*EDGES, *CHUNK_EDGES)
) -> list[list[int]]:
    """Token ids, seeded: prompts of these `edges`' lengths, a family with a shared prefix, then
    lengths spread evenly on a log scale from 25 to LENGTH_MAX."""
    draw = random.Random(seed)

    def text(length: int) -> list[int]:
        return [draw.randint(FIRST_ID, LAST_ID) for _ in range(length)]

    found = [text(length) for length in edges]
    prefix = shared_prefix()
    found += [prefix + text(extra) for extra in (0, 1, 60, BLOCK, 2 * BLOCK + 3, 900)]
    while len(found) < count:
        found.append(text(int(LENGTH_MAX ** draw.uniform(0.4, 1.0))))
    return found[:count]
