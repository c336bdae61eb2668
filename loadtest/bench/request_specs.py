"""Requests as lengths and shared pieces, before any text is made.

A prompt is a sequence of pieces. Equal seeds give equal text, so prompts that begin with the same
pieces share a prefix that a server may have cached.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from loadtest.traces.mooncake import BLOCK_TOKENS
from loadtest.traces.rows import Row

OWN = "own"
"""Prefix of the seeds that no two requests share."""


class Piece(NamedTuple):
    seed: str
    tokens: int


class RequestSpec(NamedTuple):
    """One request of a load."""

    #: Name of the row in the tables.
    kind: str
    #: The prompt, in order.
    pieces: tuple[Piece, ...]
    #: Tokens to generate.
    output: int
    #: Seconds after the start of the load at which it is due; 0 in a closed loop.
    at: float = 0.0

    @property
    def prompt(self) -> int:
        return sum(piece.tokens for piece in self.pieces)


def from_rows(
    rows: Iterable[Row], *, speed: float = 1.0, scale: float = 1.0
) -> Iterator[RequestSpec]:
    """A trace `speed` times as fast, with all lengths times `scale`. Equal block ids stay equal
    prefixes: a block scales as the whole does."""
    block = max(1, round(BLOCK_TOKENS * scale))
    for number, row in enumerate(rows):
        prompt = max(1, round(row.prompt * scale))
        yield RequestSpec(
            kind="trace",
            pieces=_blocks(row, block, prompt)
            if row.blocks
            else (Piece(f"{OWN}{number}", prompt),),
            output=max(1, round(row.output * scale)),
            at=row.at / speed,
        )


def _blocks(row: Row, block: int, prompt: int) -> tuple[Piece, ...]:
    pieces, left = [], prompt
    for index, block_id in enumerate(row.blocks):
        tokens = left if index == len(row.blocks) - 1 else min(block, left)
        if tokens > 0:
            pieces.append(Piece(f"block{block_id}", tokens))
        left -= tokens
    return tuple(pieces)


class Lengths(NamedTuple):
    """A log-normal distribution around a median, limited to [least, most]."""

    median: int
    sigma: float = 0.6
    least: int = 1
    most: int = 1_000_000

    def draw(self, dice: random.Random, scale: float) -> int:
        drawn = self.median * dice.lognormvariate(0.0, self.sigma)
        return max(1, round(min(self.most, max(self.least, drawn)) * scale))


class Mix(NamedTuple):
    """A distribution of requests."""

    name: str
    #: Length of the part that no other request shares.
    own: Lengths
    #: Length of the answer.
    output: Lengths
    #: Length of a prefix that several requests share; None without one.
    shared: Lengths | None = None
    #: Number of different shared prefixes; the first ones are the most frequent.
    among: int = 1


CHAT = Mix("chat", Lengths(120, 0.8, 8, 4_000), Lengths(120, 0.7, 4, 800), Lengths(150, 0.3), 4)
MIXES: dict[str, Mix] = {
    "chat": CHAT,
    "rag": Mix(
        "rag", Lengths(40, 0.5, 8, 300), Lengths(90, 0.5, 8, 400), Lengths(1_600, 0.2), among=24
    ),
    "code": Mix("code", Lengths(2_000, 0.7, 100, 7_000), Lengths(25, 0.8, 4, 300)),
    "summarise": Mix("summarise", Lengths(3_500, 0.4, 800, 12_000), Lengths(180, 0.4, 40, 500)),
}
LONG = "long"
LONG_TOKENS = 100_000
LONG_AT = 10
"""Of the mix `long`: which request is the long one, counted from 0."""
NAMES = (*MIXES, LONG, "fixed")


def synthetic(name: str, seed: int, scale: float = 1.0) -> Iterator[RequestSpec]:
    """Endless. `long` is chat with one prompt of 100,000 tokens among it."""
    dice = random.Random(f"{name}{seed}")
    mix = CHAT if name == LONG else MIXES[name]
    number = 0
    while True:
        if name == LONG and number == LONG_AT:
            tokens = max(1, round(LONG_TOKENS * scale))
            yield RequestSpec(
                LONG, (Piece(f"{OWN}{seed}.{number}", tokens),), CHAT.output.draw(dice, scale)
            )
        else:
            yield _drawn(mix, dice, f"{OWN}{seed}.{number}", scale)
        number += 1


def fixed(prompt: int, output: int, seed: object) -> Iterator[RequestSpec]:
    """Endless, all of one length, no two with a common prefix."""
    number = 0
    while True:
        yield RequestSpec("fixed", (Piece(f"{OWN}{seed}.{number}", prompt),), output)
        number += 1


def _drawn(mix: Mix, dice: random.Random, own: str, scale: float) -> RequestSpec:
    pieces = []
    if mix.shared is not None:
        which = min(int(dice.expovariate(4 / mix.among)), mix.among - 1)
        tokens = mix.shared.draw(random.Random(f"{mix.name}{which}"), scale)
        pieces.append(Piece(f"{mix.name}{which}", tokens))
    pieces.append(Piece(own, mix.own.draw(dice, scale)))
    return RequestSpec(mix.name, tuple(pieces), mix.output.draw(dice, scale))
