"""What D says to a gateway."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from common.messages.parts import Message

TokenId = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
"""What `common.wire.pack_ids` can hold: a stream's tokens go back to the router when it moves."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms at one position. The first id is the token that stands there and `rank`
    its rank in the vocabulary, from 1; the others are the likeliest, or the ids asked for."""

    rank: int
    token_ids: list[int]
    logprobs: list[float]


class Delta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """New tokens of one stream in one engine step. `index`: position of the first new token in the
    completion, from 0; the gateway accepts only the next index of the current attempt. The last
    delta has `finish_reason` or `error` set. `logprobs`: one for each new token; `prompt_logprobs`:
    one for each prompt token from the second on, with the first delta; each only if asked for."""

    request_id: str
    attempt: int
    index: int
    token_ids: list[TokenId]
    finish_reason: str = ""
    stop_token: int = -1
    cached_tokens: int = 0
    error: str = ""
    message: str = ""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None


class Tokens(Message, frozen=True):
    """D: all deltas of one engine step for this gateway's streams."""

    deltas: list[Delta]
