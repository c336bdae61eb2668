"""Our table of fields against the request models of the pinned vLLM: none is forgotten."""

from __future__ import annotations

import pytest
from vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)

from services.gateway.api.routes import Route
from services.gateway.api.whole_fields import HONOURED, REFUSED

MODELS = {
    Route.CHAT: [ChatCompletionRequest],
    Route.COMPLETION: [CompletionRequest],
    Route.RESPONSES: [ResponsesRequest],
    Route.MESSAGES: [AnthropicMessagesRequest],
    Route.COUNT_TOKENS: [AnthropicCountTokensRequest],
    Route.TOKENIZE: [TokenizeCompletionRequest, TokenizeChatRequest],
    Route.DETOKENIZE: [DetokenizeRequest],
}


@pytest.mark.parametrize("route", list(Route))
def test_every_field_is_honoured_or_refused(route: Route) -> None:
    theirs = {name for model in MODELS[route] for name in model.model_fields}
    assert theirs - HONOURED[route] - set(REFUSED[route]) == set()
    assert HONOURED[route] - theirs == set()
