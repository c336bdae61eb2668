"""The text port: all that the gateway knows of tokenizers and chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Detokenizer(Protocol):
    """Token ids of one stream to text, in order. A character split over tokens is given whole, with
    the token that completes it; special tokens give nothing."""

    def push(self, token_ids: list[int]) -> str: ...

    def flush(self) -> str:
        """At the end: what never became whole, as U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the model's generation_config.json says where a request says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class TextPort(Protocol):
    """`vocab_size`: ids below it are valid. `context`: tokens the model was made for, 0 = unknown.
    Methods may be called from any thread."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def defaults(self) -> SamplingDefaults: ...

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """Raises BatonError(INVALID_REQUEST) when the model's template refuses the messages."""
        ...

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def tokens_min(self, text: str) -> int:
        """A cheap lower bound of the number of tokens."""
        ...

    def detokenizer(self, prompt_ids: list[int]) -> Detokenizer: ...
