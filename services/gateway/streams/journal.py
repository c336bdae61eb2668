"""What one request has said so far, and which message may say the next word.

Theory of operation: a token's identity is (attempt, index). D counts `index` from 0 in each
attempt; the journal knows how many tokens earlier attempts had emitted (`base`), so that a
resubmission of prompt + emitted tokens as `attempt + 1` needs nothing from D. What is not of the
current attempt or not the next index is never emitted: no token twice, none skipped.
"""

from __future__ import annotations

import enum

from common.errors import BatonError, Code


class Seen(enum.Enum):
    """What a delta is to its journal. GAP: tokens before it never came, the attempt is broken."""

    NEXT = "next"
    STALE = "stale"
    GAP = "gap"


class Journal:
    """Bounded by `max_tokens` emitted ids. `attempt` starts at 1."""

    __slots__ = ("_base", "attempt", "emitted", "max_tokens", "prompt_ids")

    def __init__(self, prompt_ids: list[int], max_tokens: int) -> None:
        self.prompt_ids = prompt_ids
        self.max_tokens = max_tokens
        self.attempt = 1
        self.emitted: list[int] = []
        self._base = 0

    def place(self, attempt: int, index: int) -> Seen:
        """Where a delta belongs."""
        if attempt != self.attempt:
            return Seen.STALE
        expected = len(self.emitted) - self._base
        if index == expected:
            return Seen.NEXT
        return Seen.STALE if index < expected else Seen.GAP

    def accept(self, attempt: int, index: int, token_ids: list[int]) -> Seen:
        """Takes the ids when they are next. Raises BatonError(ENGINE_FAILED) when the engine made
        more tokens than were asked for."""
        emitted = self.emitted
        size = len(emitted)
        if attempt != self.attempt or index != size - self._base:
            return self.place(attempt, index)
        if size + len(token_ids) > self.max_tokens:
            raise BatonError(
                Code.ENGINE_FAILED,
                f"the engine made more than the {self.max_tokens} tokens asked for",
            )
        emitted += token_ids
        return Seen.NEXT

    def forget_after(self, count: int) -> None:
        """Drops what came after the first `count` emitted ids: a stop string ended the text."""
        del self.emitted[count:]

    def next_attempt(self) -> int:
        """Begins a new attempt after what was emitted; the old one's deltas are stale from now."""
        self.attempt += 1
        self._base = len(self.emitted)
        return self.attempt
