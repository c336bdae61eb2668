"""The ports between the token path and the ways to answer a client."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from common.errors import BatonError
from common.messages import Delta
from services.gateway.streams.journal import Journal


class PushOutcome(enum.Enum):
    """What a delta did to its stream."""

    #: Not of the current attempt, or already known; nothing happened.
    DROPPED = "dropped"
    #: Its tokens were taken, and more may come.
    RUNNING = "running"
    #: D ended the attempt by itself; the answer is complete.
    FINISHED = "finished"
    #: A stop string was met; the answer is complete, and D must be aborted.
    STOPPED = "stopped"
    #: D ended the attempt with an error.
    ERROR = "error"
    #: Tokens are missing, or too many; D must be aborted.
    BROKEN = "broken"


#: The delta's tokens were taken.
ACCEPTED = frozenset({PushOutcome.RUNNING, PushOutcome.FINISHED, PushOutcome.STOPPED})


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt: int
    completion: int
    #: Prompt tokens whose KV was computed before this request.
    cached: int
    #: Prompt tokens that were put into a prefix cache for this request.
    stored: int = 0


def usage_of(*journals: Journal) -> Usage:
    """Of all generations for one HTTP request."""
    return Usage(
        sum(len(journal.prompt_ids) for journal in journals),
        sum(len(journal.emitted) for journal in journals),
        sum(journal.cached_tokens for journal in journals),
        sum(max(0, journal.stored_tokens - journal.cached_tokens) for journal in journals),
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended by itself."""

    #: OpenAI's `finish_reason`.
    reason: str
    #: The stop string or stop token id that was met; None for the model's own end.
    stop_reason: str | int | None
    usage: Usage


class TokenStream(Protocol):
    """Takes one request's deltas; sans-IO."""

    journal: Journal
    #: Set after ERROR and BROKEN. The answer has not been told of it.
    error: BatonError | None

    def push(self, delta: Delta) -> PushOutcome: ...


class FailureListener(Protocol):
    """Is called when a request has failed."""

    def fail(self, error: BatonError) -> None: ...


class Answer(Protocol):
    """Is called in order: any number of `text`, then exactly one of `finish` and `fail`. Its
    methods never wait."""

    def text(self, text: str, token_ids: list[int]) -> None:
        """`token_ids`: the tokens since the last call. `text` is never empty except at first."""
        ...

    def finish(self, text: str, token_ids: list[int], ending: Ending) -> None: ...

    def fail(self, error: BatonError) -> None: ...


class Collected:
    """The answer to a request that does not stream, bounded by its max_tokens. Read it after
    `on_end` was called."""

    __slots__ = ("_on_end", "_pieces", "ending", "error", "token_ids")

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self._on_end = on_end
        self._pieces: list[str] = []
        self.token_ids: list[int] = []
        #: None unless the answer is complete.
        self.ending: Ending | None = None
        #: None unless the request failed.
        self.error: BatonError | None = None

    @property
    def joined_text(self) -> str:
        return "".join(self._pieces)

    def text(self, text: str, token_ids: list[int]) -> None:
        self._pieces.append(text)
        self.token_ids += token_ids

    def finish(self, text: str, token_ids: list[int], ending: Ending) -> None:
        self.text(text, token_ids)
        self.ending = ending
        self._end()

    def fail(self, error: BatonError) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        if self._on_end is not None:
            self._on_end()
