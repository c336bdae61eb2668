"""Makes the body of a request: token ids for completions, text for chat.

Token ids give exact lengths on every model and cost the server no tokenization. Text has the length
that the model's tokenizer makes of it; `Measure` is how many characters make a token there.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadtest.bench.request_specs import Piece, RequestSpec

Api = Literal["completions", "chat"]
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     ", np.uint8)


class Measure(NamedTuple):
    """How text relates to tokens in the model's chat format."""

    chars_per_token: float = 1.0
    #: Tokens that the chat template adds to a message.
    overhead: int = 0


class Maker(NamedTuple):
    """Makes request bodies."""

    model: str
    api: Api = "completions"
    #: Range of the token ids. The default holds printable characters, single tokens in every byte-
    #: level tokenizer.
    ids: tuple[int, int] = (32, 127)
    #: Answers have exactly the requested length (vLLM's extension; other servers may refuse it).
    ignore_eos: bool = True
    measure: Measure = Measure()

    @property
    def path(self) -> str:
        return "/v1/completions" if self.api == "completions" else "/v1/chat/completions"

    def body(self, spec: RequestSpec) -> bytes:
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": spec.output,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.api == "completions":
            fields["prompt"] = self.token_ids(spec)
        else:
            fields["messages"] = [{"role": "user", "content": self.text(spec)}]
        return msgspec.json.encode(fields)

    def token_ids(self, spec: RequestSpec) -> list[int]:
        drawn = [_dice(p).integers(*self.ids, p.tokens) for p in spec.pieces]
        ids: list[int] = np.concatenate(drawn).tolist()
        return ids

    def text(self, spec: RequestSpec) -> str:
        """The template's own tokens count to the prompt, at the expense of its last piece."""
        chars = [max(1, round(p.tokens * self.measure.chars_per_token)) for p in spec.pieces]
        chars[-1] -= round(self.measure.overhead * self.measure.chars_per_token)
        parts = [_letters(p, n) for p, n in zip(spec.pieces, chars, strict=True) if n > 0]
        return b"".join(part.tobytes() for part in parts).decode() or "a"


def _letters(piece: Piece, chars: int) -> NDArray[np.uint8]:
    return LETTERS[_dice(piece).integers(0, len(LETTERS), chars)]


def _dice(piece: Piece) -> np.random.Generator:
    """The same on every machine and in every run."""
    return np.random.default_rng(list(hashlib.sha256(piece.seed.encode()).digest()[:16]))
