"""Where a stream's text goes: the port between the token path and the two ways to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from common.errors import BatonError
from common.messages import Delta
from services.gateway.streams.journal import Journal
from services.gateway.streams.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `cached`: prompt tokens whose KV D did not compute."""

    prompt: int
    completion: int
    cached: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended by itself. `stop_reason`: the stop string or stop token id that was met,
    None for the model's own end."""

    reason: str
    stop_reason: str | int | None
    usage: Usage


class TokenStream(Protocol):
    """What takes one request's deltas; sans-IO. `error` is set after ERROR and BROKEN."""

    journal: Journal
    error: BatonError | None

    def push(self, delta: Delta) -> Verdict: ...


class Hears(Protocol):
    """Who is told that a request failed."""

    def fail(self, error: BatonError) -> None: ...


class Answer(Protocol):
    """Called in order: any number of `text`, then exactly one of `finish` and `fail`. Never
    waits."""

    def text(self, text: str, token_ids: list[int]) -> None:
        """`token_ids` are the tokens since the last call; `text` is never empty except at first."""
        ...

    def finish(self, text: str, token_ids: list[int], ending: Ending) -> None: ...

    def fail(self, error: BatonError) -> None: ...


class Collected:
    """The answer to a request that does not stream; read it once `finished` or `failed` is called.
    Bounded by max_tokens."""

    __slots__ = ("_on_end", "_pieces", "ending", "error", "token_ids")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.token_ids: list[int] = []
        self.ending: Ending | None = None
        self.error: BatonError | None = None
        self._on_end: list[_Callback] = []

    def on_end(self, callback: _Callback) -> None:
        self._on_end.append(callback)

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

    @property
    def whole_text(self) -> str:
        return "".join(self._pieces)

    def _end(self) -> None:
        for callback in self._on_end:
            callback()


class _Callback(Protocol):
    def __call__(self) -> None: ...
