"""What D sends to a gateway."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from common.messages.parts import Message
from common.messages.to_router import Hello

TokenId = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
"""A token id that `common.net.wire.pack_ids` can hold. When a stream moves to another worker, its
tokens go back to the router in that form."""


POOLED_BYTES_MAX = 1 << 18
"""65,536 numbers: more than any model makes of a prompt."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs at one position of the text."""

    #: Rank of the token at this position in the vocabulary, from 1.
    rank: int
    #: The token at this position, and then the likeliest ones or those that were asked for.
    token_ids: list[int]
    #: Natural logarithms of their probabilities.
    logprobs: list[float]


class Delta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """New tokens of one stream in one engine step. The last delta has `finish_reason` or `error`
    set."""

    request_id: str
    attempt: int
    #: Position of the first new token in the completion, from 0. The gateway accepts only the next
    #: index of the current attempt.
    index: int
    token_ids: list[TokenId]
    #: A `FinishReason`, else empty.
    finish_reason: str = ""
    #: Token that ended the text, if it ended by one; else -1.
    stop_token: int = -1
    #: Prompt tokens whose KV was not computed by D, in the first delta.
    cached_tokens: int = 0
    #: A `Code`, else empty.
    error: str = ""
    message: str = ""
    #: One for each new token, if asked for.
    logprobs: list[TokenLogprobs] | None = None
    #: One for each prompt token from the second on, in the first delta, if asked for.
    prompt_logprobs: list[TokenLogprobs] | None = None
    #: Those of `cached_tokens` that P handed over. They were computed for this request, save what P
    #: reports as cached (`Prefilled`).
    handed_over_tokens: int = 0
    #: Prompt tokens that are in D's prefix cache now, in the first delta.
    stored_tokens: int = 0
    #: What a pooling model made of the prompt, in the only delta: float32, little endian.
    pooled: Annotated[bytes, Meta(max_length=POOLED_BYTES_MAX)] = b""


class Tokens(Message, frozen=True):
    """D: all deltas of one engine step for this gateway's streams. No answer."""

    deltas: list[Delta]


DecodeToGateway = Hello | Tokens
"""What a gateway decodes from a decode worker, on the stream socket."""
