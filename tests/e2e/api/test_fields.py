"""Our table of fields against the request models of the pinned vLLM: none is forgotten."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from services.gateway.api.fields import WITHOUT_EFFECT
from services.gateway.api.routes import RERANKS, SCORES, Route
from services.gateway.full_api.fields import HONOURED, REFUSED

#: Taken on every route that generates.
HINTS = {"session_id", "prompt_cache_key"}


def models(route: Route) -> list[Any]:
    """Imported here, not at collection: engines are opened in this process before."""
    from vllm.entrypoints.anthropic import protocol as anthropic
    from vllm.entrypoints.openai.chat_completion.protocol import (
        BatchChatCompletionRequest,
        ChatCompletionRequest,
    )
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.pooling.classify import protocol as classify
    from vllm.entrypoints.pooling.embed import protocol as embed
    from vllm.entrypoints.pooling.pooling import protocol as pooling
    from vllm.entrypoints.pooling.scoring import protocol as scoring
    from vllm.entrypoints.serve.tokenize import protocol as tokenize

    embeddings = [embed.EmbeddingCompletionRequest, embed.EmbeddingChatRequest]
    classes = [classify.ClassificationCompletionRequest, classify.ClassificationChatRequest]
    pooled = [pooling.PoolingCompletionRequest, pooling.PoolingChatRequest]
    pooled += [pooling.IOProcessorRequest]
    return {
        Route.EMBEDDINGS: embeddings,
        Route.CLASSIFY: classes,
        Route.POOLING: pooled,
        **{route: [scoring.RerankRequest] for route in RERANKS},
        **{route: [*get_args(scoring.ScoreRequest)] for route in SCORES},
        Route.CHAT: [ChatCompletionRequest],
        Route.BATCH: [BatchChatCompletionRequest],
        Route.COMPLETION: [CompletionRequest],
        Route.RESPONSES: [ResponsesRequest],
        Route.MESSAGES: [anthropic.AnthropicMessagesRequest],
        Route.COUNT_TOKENS: [anthropic.AnthropicCountTokensRequest],
        Route.TOKENIZE: [tokenize.TokenizeCompletionRequest, tokenize.TokenizeChatRequest],
        Route.DETOKENIZE: [tokenize.DetokenizeRequest],
    }[route]


@pytest.mark.parametrize("route", list(Route))
def test_every_field_is_honoured_refused_or_without_effect(route: Route) -> None:
    theirs = {name for model in models(route) for name in model.model_fields}
    assert theirs - HONOURED[route] - set(REFUSED[route]) - WITHOUT_EFFECT == set()
    assert HONOURED[route] - theirs <= HINTS
