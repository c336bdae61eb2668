"""vLLM's serving classes behind the port: a body in, JSON or events out."""

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
from vllm.entrypoints.openai.chat_completion.batch_serving import OpenAIServingChatBatch
from vllm.entrypoints.openai.chat_completion.protocol import (
    BatchChatCompletionRequest,
    ChatCompletionRequest,
)
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
from vllm.lora.request import LoRARequest
from vllm.renderers.online_renderer import OnlineRenderer

from common.config import Config
from common.errors import BatonError, Code
from common.messages import ADAPTERS_MAX
from common.model.adapters import name_of_adapter
from common.model.embedded import EMBEDDED_MODEL_NAME
from services.gateway.api.routes import Route
from services.gateway.full_api.port import ApiRequest, CheckedBody, Checks, EventReply, JsonReply
from services.gateway.full_api.vllm.client import FleetClient
from services.gateway.full_api.vllm.errors import from_response, from_validation, translated
from services.gateway.full_api.vllm.prepared import begin, restore
from services.gateway.full_api.vllm.recording import AllRecorded, Recording
from services.gateway.text.template import read_template

ERROR_EVENT = 'data: {"error"'
CONTENT_FORMAT = "auto"


@dataclass(frozen=True, slots=True)
class Handler:
    """One route of vLLM's."""

    #: From JSON bytes to vLLM's request.
    parse: Callable[[bytes], Any]
    #: The method of vLLM's serving class.
    answer: Callable[[Any, Any], Awaitable[Any]]


class VllmApi:
    """A `FullApi`. `checks` are done elsewhere; a helper process itself has none."""

    def __init__(
        self, config: Config, root: str, client: FleetClient, checks: Checks | None = None
    ) -> None:
        self.client = client
        self._checks = checks
        parser = config.model.tool_parser or _default_parser(config)
        reasoning = config.model.reasoning_parser
        names = (config.model.served_name, *config.model.aliases)
        paths = [BaseModelPath(name=name, model_path=root) for name in names]
        self._models = models = OpenAIServingModels(client, paths)
        template = read_template(config.model.chat_template)
        text: dict[str, Any] = {
            "chat_template": template,
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
        self._renderer = renderer
        usage = {"request_logger": None, "enable_prompt_tokens_details": True}
        chat: dict[str, Any] = {"online_renderer": renderer, **text, **usage}
        chats = OpenAIServingChat(client, models, "assistant", **chat)
        batches = OpenAIServingChatBatch(client, models, "assistant", **chat)
        completions = OpenAIServingCompletion(client, models, online_renderer=renderer, **usage)
        responses = OpenAIServingResponses(client, models, renderer, **text, **usage)
        self._messages = messages = AnthropicServingMessages(client, models, "assistant", **chat)
        tokens = ServingTokenization(
            models,
            renderer,
            request_logger=None,
            chat_template=template,
            chat_template_content_format=CONTENT_FORMAT,
        )
        self._handlers = {
            Route.CHAT: _handler(ChatCompletionRequest, chats.create_chat_completion),
            Route.BATCH: _handler(BatchChatCompletionRequest, batches.create_batch_chat_completion),
            Route.COMPLETION: _handler(CompletionRequest, completions.create_completion),
            Route.RESPONSES: _handler(ResponsesRequest, responses.create_responses),
            Route.MESSAGES: _handler(AnthropicMessagesRequest, messages.create_messages),
            Route.COUNT_TOKENS: _handler(AnthropicCountTokensRequest, messages.count_tokens),
            Route.TOKENIZE: _handler(TokenizeRequest, tokens.create_tokenize),
            Route.DETOKENIZE: _handler(DetokenizeRequest, tokens.create_detokenize),
        }

    @property
    def harmony(self) -> OnlineRenderer | None:
        """What renders the prompts of a model that has messages of its own kind and no template
        (gpt-oss); None for all others."""
        return self._renderer if self._renderer.use_harmony else None

    def parse(self, route: Route, body: bytes) -> Any:
        """vLLM's request. Raises vLLM's errors and pydantic's."""
        return self._handlers[route].parse(body)

    async def resolve(self, request: Any) -> None:
        """Has vLLM render what it wants to know about the chat template, once and before a
        request's own prompt is in its place."""
        thinking = getattr(request, "thinking", None)
        if getattr(thinking, "type", "") == "disabled":
            await self._messages._get_disabled_thinking_effort()  # noqa: SLF001 - it is remembered

    async def handle(self, route: Route, request: Any, api_request: ApiRequest) -> Any:
        """vLLM's answer: a model, an ErrorResponse or an iterator of events. Raises anything."""
        self._admit(api_request.adapter)
        if route is Route.RESPONSES:
            request.request_id = f"resp_{api_request.origin.request_id}"
        return await self._handlers[route].answer(request, _raw_request(api_request))

    def _admit(self, adapter: str) -> None:
        """vLLM's classes take the name of this LoRA adapter for one of a model, and answer with it.
        Whether it may be asked for was checked before."""
        name, known = name_of_adapter(adapter), self._models.lora_requests
        if name and name not in known:
            if len(known) >= ADAPTERS_MAX:
                known.clear()
            known[name] = LoRARequest(name, len(known) + 1, adapter)

    async def answer(self, api_request: ApiRequest) -> JsonReply | EventReply:
        assert self._checks is not None
        checked = await self._checks.body(api_request)
        api_request.hinted_session = checked.session
        for name in checked.ignored:
            api_request.origin.ignored.add(name)
        if checked.answer:
            return JsonReply(checked.answer)
        api_request.is_stream = checked.is_stream
        if checked.has_logprobs and checked.prompts and not checked.is_stream:
            return JsonReply(await self._written(api_request, checked))
        return await self.generate(api_request, checked)

    async def _written(self, api_request: ApiRequest, checked: CheckedBody) -> bytes:
        """The answer by a helper, from what the engines sent."""
        assert self._checks is not None
        recording = Recording(len(checked.prompts))
        try:
            await self.generate(api_request, checked, recording)
        except AllRecorded:
            return await self._checks.answer(api_request, checked, recording.deltas)
        raise api_request.error or BatonError(Code.INTERNAL, "nothing was generated")

    async def generate(
        self, api_request: ApiRequest, checked: CheckedBody, recording: Recording | None = None
    ) -> JsonReply | EventReply:
        """Raises BatonError, and AllRecorded with `recording`."""
        route = api_request.route
        self.client.begin(api_request, recording)
        try:
            request = self.parse(route, checked.body)
            restore(route, request, checked)
            await self.resolve(request)
            begin(checked.prompts)
            answer = await self.handle(route, request, api_request)
        except ValidationError as error:
            raise from_validation(error) from error
        except Exception as error:
            raise api_request.error or as_bad_request(api_request, error) from error
        if api_request.error is not None:
            raise api_request.error
        if isinstance(answer, ErrorResponse):
            raise from_response(answer)
        if isinstance(answer, BaseModel):
            return JsonReply(answer_bytes(route, answer))
        return EventReply(self._events(api_request, answer))

    def end(self, api_request: ApiRequest, reason: str) -> None:
        self.client.end(api_request, reason)

    def set_context(self, tokens: int) -> None:
        """vLLM's serving classes and renderer share this configuration and read it at each
        request."""
        self.client.model_config.max_model_len = tokens

    async def _events(
        self, api_request: ApiRequest, answer: AsyncIterator[Any]
    ) -> AsyncIterator[bytes]:
        """Raises where vLLM would end a failed stream with an event of its own and, on two routes,
        with [DONE]."""
        try:
            async for event in answer:
                if api_request.error is not None:
                    break
                text = event if isinstance(event, str) else _typed_event(event)
                if text.startswith(ERROR_EVENT):
                    raise _error_of_event(text)
                yield text.encode()
        except BatonError:
            raise
        except Exception as error:
            if api_request.error is None:
                raise translated(error) from error
        if api_request.error is not None:
            raise api_request.error


def _default_parser(config: Config) -> str | None:
    """Everything should work with the embedded model, which is for a first look."""
    return "hermes" if config.model.path == EMBEDDED_MODEL_NAME else None


def _handler(model: Any, answer: Callable[[Any, Any], Awaitable[Any]]) -> Handler:
    return Handler(TypeAdapter(model).validate_json, answer)


def as_bad_request(api_request: ApiRequest, error: Exception) -> BatonError:
    """vLLM's validators and renderers fail on some wrong types with any error. Before a generation
    was opened, the cause can only be the request."""
    known = translated(error)
    if api_request.specs or known.http.status < 500:
        return known
    sentence = f"a field's type or value is not understood ({type(error).__name__})"
    return BatonError(Code.INVALID_REQUEST, sentence)


def _raw_request(api_request: ApiRequest) -> Any:
    """The part of an HTTP request that vLLM reads: our id, which becomes its own."""
    headers = {"X-Request-Id": api_request.origin.request_id}
    return SimpleNamespace(headers=headers, state=SimpleNamespace())


def answer_bytes(route: Route, answer: BaseModel) -> bytes:
    if route.is_anthropic:
        return answer.model_dump_json(exclude_none=True).encode()
    return answer.model_dump_json(by_alias=route is Route.RESPONSES).encode()


def _typed_event(event: Any) -> str:
    return f"event: {event.type}\ndata: {event.model_dump_json(by_alias=True)}\n\n"


def _error_of_event(text: str) -> BatonError:
    """The error in an error event that vLLM wrote."""
    try:
        description = json.loads(text.removeprefix("data: "))["error"]
        code = Code.INTERNAL if int(description["code"]) >= 500 else Code.INVALID_REQUEST
        return BatonError(code, str(description["message"]), param=description.get("param"))
    except (ValueError, KeyError, TypeError, msgspec.DecodeError):
        return BatonError(Code.INTERNAL, "the answer could not be made")
