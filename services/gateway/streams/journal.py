"""The tokens of one request so far, and which delta may add the next ones.

Theory of operation: a token's identity is (attempt, index). D counts `index` from 0 in each
attempt. The journal knows how many tokens earlier attempts emitted (`_base`), so that submitting
prompt + emitted tokens as `attempt + 1` needs nothing from D. A delta of another attempt, or whose
index is not the next one, adds nothing: no token is emitted twice and none is skipped.
"""

from __future__ import annotations

import enum

from common.errors import BatonError, Code
from common.messages import Delta


class DeltaOrder(enum.Enum):
    """Where a delta stands relative to its journal."""

    NEXT = "next"
    #: Of an earlier attempt, or already known.
    STALE = "stale"
    #: Tokens before it never came; the attempt is broken.
    GAP = "gap"


class Journal:
    """Holds at most `max_tokens` emitted ids."""

    __slots__ = (
        "_base", "_in_cache_of_d", "_in_cache_of_p", "attempt", "emitted", "max_tokens",
        "prompt_ids", "stored_tokens",
    )  # fmt: skip

    def __init__(self, prompt_ids: list[int], max_tokens: int) -> None:
        self.prompt_ids = prompt_ids
        self.max_tokens = max_tokens
        #: The current attempt, from 1.
        self.attempt = 1
        #: The ids of all attempts, in order.
        self.emitted: list[int] = []
        #: Prompt tokens that are in D's prefix cache since the first token.
        self.stored_tokens = 0
        self._in_cache_of_d = self._in_cache_of_p = 0
        self._base = 0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose KV was computed before this request, wherever it was; what P computed
        for this request and handed over is not among them. Both caches hold beginnings of the
        prompt, so the longer one counts."""
        return min(max(self._in_cache_of_d, self._in_cache_of_p), len(self.prompt_ids))

    def take_prompt_counts(self, delta: Delta) -> None:
        """`delta`: the first of the current attempt. An attempt that goes on after tokens does not
        count; the prompt was computed before."""
        if not self._base:
            self._in_cache_of_d = delta.cached_tokens - delta.handed_over_tokens
            self.stored_tokens = delta.stored_tokens

    def take_prefill_count(self, cached_tokens: int) -> None:
        """P had so many prompt tokens in its cache for the current attempt."""
        if not self._base:
            self._in_cache_of_p = cached_tokens

    def order_of(self, attempt: int, index: int) -> DeltaOrder:
        if attempt != self.attempt:
            return DeltaOrder.STALE
        expected = len(self.emitted) - self._base
        if index == expected:
            return DeltaOrder.NEXT
        return DeltaOrder.STALE if index < expected else DeltaOrder.GAP

    def accept(self, attempt: int, index: int, token_ids: list[int]) -> DeltaOrder:
        """Takes the ids if they are next. Raises BatonError(ENGINE_FAILED) when the engine made
        more tokens than were asked for."""
        emitted = self.emitted
        size = len(emitted)
        if attempt != self.attempt or index != size - self._base:
            return self.order_of(attempt, index)
        if size + len(token_ids) > self.max_tokens:
            raise BatonError(
                Code.ENGINE_FAILED,
                f"the engine made more than the {self.max_tokens} tokens asked for",
            )
        emitted += token_ids
        return DeltaOrder.NEXT

    def truncate(self, count: int) -> None:
        """Keeps the first `count` emitted ids: a stop string ended the text there."""
        del self.emitted[count:]

    def next_attempt(self) -> int:
        """Begins an attempt after the tokens emitted so far; deltas of the old one are stale from
        now on. Returns its number."""
        self.attempt += 1
        if not self.emitted:
            self._in_cache_of_p = 0
        self._base = len(self.emitted)
        return self.attempt
