"""vLLM's serving classes behind the port: bodies in, JSON or events out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from vllm.entrypoints.serve.tokenize.serving import ServingTokenization
from vllm.renderers.online_renderer import OnlineRenderer

from common.config import Config
from common.errors import BatonError, Code
from common.model.embedded import EMBEDDED_MODEL_NAME
from services.gateway.api.routes import Route
from services.gateway.api.whole import Asking, Events, Whole
from services.gateway.api.whole_fields import check_fields
from services.gateway.vllm_api.client import FleetClient
from services.gateway.vllm_api.errors import from_response, from_validation, translated

ERROR_EVENT = 'data: {"error"'
CONTENT_FORMAT = "auto"


@dataclass(frozen=True, slots=True)
class Handler:
    """`parse`: of JSON bytes to vLLM's request; `answer`: the serving class' method."""

    parse: Callable[[bytes], Any]
    answer: Callable[[Any, Any], Awaitable[Any]]


class VllmApi:
    """A `WholeApi`."""

    def __init__(self, config: Config, root: str, client: FleetClient) -> None:
        self._client = client
        parser = config.model.tool_parser or _default_parser(config)
        reasoning = config.model.reasoning_parser
        path = BaseModelPath(name=config.model.served_name, model_path=root)
        models = OpenAIServingModels(client, [path])
        text: dict[str, Any] = {
            "chat_template": None,
            "chat_template_content_format": CONTENT_FORMAT,
            "enable_auto_tools": parser is not None,
            "tool_parser": parser,
            "reasoning_parser": reasoning,
        }
        renderer = OnlineRenderer(
            model_config=client.model_config,
            renderer=client.renderer,
            request_logger=None,
            **text,
        )
        renderer.warmup()
        usage = {"request_logger": None, "enable_prompt_tokens_details": True}
        chat: dict[str, Any] = {"online_renderer": renderer, **text, **usage}
        chats = OpenAIServingChat(client, models, "assistant", **chat)
        completions = OpenAIServingCompletion(client, models, online_renderer=renderer, **usage)
        responses = OpenAIServingResponses(client, models, renderer, **text, **usage)
        messages = AnthropicServingMessages(client, models, "assistant", **chat)
        tokens = ServingTokenization(
            models,
            renderer,
            request_logger=None,
            chat_template=None,
            chat_template_content_format=CONTENT_FORMAT,
        )
        self._handlers = {
            Route.CHAT: _handler(ChatCompletionRequest, chats.create_chat_completion),
            Route.COMPLETION: _handler(CompletionRequest, completions.create_completion),
            Route.RESPONSES: _handler(ResponsesRequest, responses.create_responses),
            Route.MESSAGES: _handler(AnthropicMessagesRequest, messages.create_messages),
            Route.COUNT_TOKENS: _handler(AnthropicCountTokensRequest, messages.count_tokens),
            Route.TOKENIZE: _handler(TokenizeRequest, tokens.create_tokenize),
            Route.DETOKENIZE: _handler(DetokenizeRequest, tokens.create_detokenize),
        }

    async def ask(self, asking: Asking) -> Whole | Events:
        check_fields(asking.route, asking.body)
        handler = self._handlers[asking.route]
        self._client.model_config.max_model_len = asking.context
        self._client.begin(asking)
        try:
            request = handler.parse(asking.body)
            if asking.route is Route.RESPONSES:
                request.request_id = f"resp_{asking.origin.request_id}"
            answer = await handler.answer(request, _raw_request(asking))
        except ValidationError as error:
            raise from_validation(error) from error
        except Exception as error:
            raise asking.error or _blamed(asking, error) from error
        if asking.error is not None:
            raise asking.error
        if isinstance(answer, ErrorResponse):
            raise from_response(answer)
        if isinstance(answer, BaseModel):
            return Whole(_json(asking.route, answer))
        return Events(self._events(asking, answer))

    def end(self, asking: Asking, reason: str) -> None:
        self._client.end(asking, reason)

    async def _events(self, asking: Asking, answer: AsyncIterator[Any]) -> AsyncIterator[bytes]:
        """vLLM ends a failed stream with its own event and, on two routes, with [DONE]; here it
        raises instead."""
        try:
            async for event in answer:
                if asking.error is not None:
                    break
                text = event if isinstance(event, str) else _typed_event(event)
                if text.startswith(ERROR_EVENT):
                    raise _told(text)
                yield text.encode()
        except BatonError:
            raise
        except Exception as error:
            if asking.error is None:
                raise translated(error) from error
        if asking.error is not None:
            raise asking.error


def _default_parser(config: Config) -> str | None:
    """The embedded model is for a first look, where everything should work."""
    return "hermes" if config.model.path == EMBEDDED_MODEL_NAME else None


def _handler(model: Any, answer: Callable[[Any, Any], Awaitable[Any]]) -> Handler:
    return Handler(TypeAdapter(model).validate_json, answer)


def _blamed(asking: Asking, error: Exception) -> BatonError:
    """vLLM's validators and renderers meet some wrong types with whatever error comes of them; as
    long as no engine was asked, only the request can be to blame."""
    known = translated(error)
    if asking.calls or known.face.http_status < 500:
        return known
    sentence = f"a field's type or value is not understood ({type(error).__name__})"
    return BatonError(Code.INVALID_REQUEST, sentence)


def _raw_request(asking: Asking) -> Any:
    """What vLLM reads of the HTTP request: our id, which becomes its own."""
    headers = {"X-Request-Id": asking.origin.request_id}
    return SimpleNamespace(headers=headers, state=SimpleNamespace())


def _json(route: Route, answer: BaseModel) -> bytes:
    if route.is_anthropic:
        return answer.model_dump_json(exclude_none=True).encode()
    return answer.model_dump_json(by_alias=route is Route.RESPONSES).encode()


def _typed_event(event: Any) -> str:
    return f"event: {event.type}\ndata: {event.model_dump_json(by_alias=True)}\n\n"


def _told(text: str) -> BatonError:
    """Of an error event that vLLM wrote."""
    try:
        told = json.loads(text.removeprefix("data: "))["error"]
        code = Code.INTERNAL if int(told["code"]) >= 500 else Code.INVALID_REQUEST
        return BatonError(code, str(told["message"]), param=told.get("param"))
    except (ValueError, KeyError, TypeError, msgspec.DecodeError):
        return BatonError(Code.INTERNAL, "the answer could not be made")
