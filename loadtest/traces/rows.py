"""What a reader of traces hands on, and what it says of the rows that it cannot use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

NAMED_MAX = 10
TOKENS_MAX = 10_000_000


class Row(NamedTuple):
    """`at`: seconds since the trace's first row. `blocks`: ids of the prompt's 512-token blocks,
    equal where the prompts are equal up to that block's end; empty where the trace does not say."""

    at: float
    prompt: int
    output: int
    blocks: tuple[int, ...] = ()


class BadRowError(Exception):
    """Why a row cannot be used."""


@dataclass(slots=True)
class Reading:
    """Grows while a trace is read. `named`: of the bad rows, the first by line."""

    path: str
    rows: int = 0
    bad: int = 0
    named: list[str] = field(default_factory=list)

    def fault(self, line: int, why: str) -> None:
        self.bad += 1
        if len(self.named) < NAMED_MAX:
            self.named.append(f"{self.path}:{line}: {why}")


def checked(row: Row) -> Row:
    """Raises BadRowError for lengths that nobody can mean."""
    for name, tokens in (("prompt", row.prompt), ("output", row.output)):
        if not 1 <= tokens <= TOKENS_MAX:
            raise BadRowError(f"{name} of {tokens} tokens is not between 1 and {TOKENS_MAX}")
    return row
