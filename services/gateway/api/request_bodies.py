"""The request bodies: the fields that the plain path honours.

The ranges are those of OpenAI and vLLM. Null means the default everywhere. Numbers may be written
as vLLM takes them, 5.0 or "5" for 5. Fields that are not here are `fields.py`'s.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

INT64_MAX = 2**63 - 1
TOKENS_MAX = 2**31 - 1
STOP_TOKENS_MAX = 1024
LOGIT_BIASES_MAX = 1024
CACHE_SALT_CHARS_MAX = 1024

TokenCount = Annotated[int, Meta(ge=1, le=TOKENS_MAX)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopString = Annotated[str, Meta(min_length=1)]
TokenId = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of both kinds. `user` is accepted and has no effect, as in vLLM. A bias beyond 100
    counts as 100, as there. `session_id` and `prompt_cache_key` are hints for placement. A lower
    `priority` is served earlier."""

    model: str | None = None
    max_tokens: TokenCount | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=TOKENS_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=TOKENS_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: StopString | list[StopString] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=STOP_TOKENS_MAX)] | None = None
    logit_bias: Annotated[dict[TokenId, float], Meta(max_length=LOGIT_BIASES_MAX)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    add_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    priority: Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=CACHE_SALT_CHARS_MAX)] | None = None


class CompletionRequest(Generation, frozen=True, kw_only=True):
    """`prompt`: text, token ids, or a list with one of these."""

    prompt: str | list[str | TokenId | list[TokenId]]


class Part(msgspec.Struct, frozen=True):
    """Only `type: text` is served by the plain path."""

    type: str = ""
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """`role` may be any that the model's template knows. `tool_calls` and `tools` must be empty on
    the plain path."""

    role: str
    content: str | list[Part | str] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    task: str | None = None
    tool_calls: list[Any] | None = None
    tools: list[Any] | None = None


class ChatRequest(Generation, frozen=True, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: TokenCount | None = None


GenerationRequest = ChatRequest | CompletionRequest
