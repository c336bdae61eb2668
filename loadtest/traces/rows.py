"""Rows of a trace, and the faults of the rows that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

NAMED_MAX = 10
TOKENS_MAX = 10_000_000


class Row(NamedTuple):
    """One request of a trace."""

    #: Seconds since the trace's first row.
    at: float
    prompt: int
    output: int
    #: Ids of the prompt's 512-token blocks, equal if the prompts are equal up to the end of that
    #: block; empty if the trace has none.
    blocks: tuple[int, ...] = ()


class BadRowError(Exception):
    """Why a row cannot be used."""


@dataclass(slots=True)
class Reading:
    """Counters of a trace; they grow while it is read."""

    path: str
    rows: int = 0
    bad: int = 0
    #: The first bad rows, by line.
    named: list[str] = field(default_factory=list)

    def fault(self, line: int, why: str) -> None:
        self.bad += 1
        if len(self.named) < NAMED_MAX:
            self.named.append(f"{self.path}:{line}: {why}")


def checked(row: Row) -> Row:
    """Raises BadRowError for lengths out of range."""
    for name, tokens in (("prompt", row.prompt), ("output", row.output)):
        if not 1 <= tokens <= TOKENS_MAX:
            raise BadRowError(f"{name} of {tokens} tokens is not between 1 and {TOKENS_MAX}")
    return row
