"""The port to tokenizers and chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Detokenizer(Protocol):
    """Turns the token ids of one stream into text, in order. A character that is split over tokens
    comes with the token that completes it. Special tokens have no text."""

    def push(self, token_ids: list[int]) -> str: ...

    def flush(self) -> str:
        """At the end of the stream: bytes that never became a character, as U+FFFD."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The model's generation_config.json, for what a request leaves out."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class TextPort(Protocol):
    """Methods may be called from any thread."""

    @property
    def vocab_size(self) -> int:
        """Ids below it are valid."""
        ...

    @property
    def context(self) -> int:
        """The longest sequence that the model was made for, in tokens; 0: unknown."""
        ...

    @property
    def defaults(self) -> SamplingDefaults: ...

    @property
    def takes_images(self) -> bool:
        """Whether the model does. Its template may want text as parts, which vLLM finds out."""
        ...

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """Raises BatonError(INVALID_REQUEST) when the model's template refuses the messages."""
        ...

    def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def tokens_min(self, text: str) -> int:
        """A lower bound of the number of tokens that needs no tokenizing."""
        ...

    def detokenizer(self, prompt_ids: list[int]) -> Detokenizer: ...
