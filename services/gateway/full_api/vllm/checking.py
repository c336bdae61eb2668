"""What a helper process does with a body: it checks it, renders it and tokenizes it.

The same classes as in the gateway read the request. Here they are ended when they have rendered
the prompt; the gateway goes on from there, with the prompt and a request that has no conversation
any more (`prepared.py`), so that nothing there depends on the size of a body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from pydantic import BaseModel, ValidationError
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from common.config import Config
from common.engine.vllm.images import images_of
from common.errors import BatonError, Code
from common.messages import ImageFeatures
from services.gateway.api.bounds import check_size
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.parse import refuse
from services.gateway.api.routes import Route
from services.gateway.full_api.fields import session_of
from services.gateway.full_api.media import count_images
from services.gateway.full_api.port import ApiRequest, CheckedBody, Origin, RenderedPrompt
from services.gateway.full_api.shape import CONVERSATION, checked_fields, pieces
from services.gateway.full_api.vllm.errors import from_response, from_validation
from services.gateway.full_api.vllm.images import RequestImages, takes_images
from services.gateway.full_api.vllm.prepared import without_conversation
from services.gateway.full_api.vllm.serving import VllmApi, answer_bytes, as_bad_request

GENERATING = frozenset(Route) - {Route.COUNT_TOKENS, Route.TOKENIZE, Route.DETOKENIZE}


#: Fields that ask for logprobs. `logprobs: 0` asks for those of the chosen tokens; they are few.
LOGPROBS = ("logprobs", "prompt_logprobs", "top_logprobs")


class _Rendered(BaseException):
    """Ends a request in a helper. No handler of errors takes it for one."""


class BodyChecker:
    def __init__(self, api: VllmApi, config: Config) -> None:
        self._api = api
        self._limits = config.gateway.limits
        self._refuses_unknown = config.gateway.unknown_fields == "refuse"
        #: Prompts of the request at hand that have yet to be rendered before it ends; 0: it goes on
        #: to its end.
        self._left = 0
        self._keeps_last = False
        self._prompts: list[RenderedPrompt] = []
        renderer = api.client.renderer
        self._takes_images = takes_images(renderer)
        render_chat, render_completion = renderer.render_chat_async, renderer.render_cmpl_async

        async def chat(*args: Any, **kwargs: Any) -> Any:
            rendered = await render_chat(*args, **kwargs)
            (conversation,), prompts = rendered
            self._take(prompts, conversation)
            return rendered

        async def completion(*args: Any, **kwargs: Any) -> Any:
            prompts = await render_completion(*args, **kwargs)
            self._take(prompts, [])
            return prompts

        renderer.render_chat_async = chat
        renderer.render_cmpl_async = completion
        if api.harmony is not None:
            self._take_harmony(api.harmony)

    def _take_harmony(self, harmony: Any) -> None:
        render_chat = harmony._make_request_with_harmony  # noqa: SLF001 - as in prepared.py
        render_responses = harmony.render_responses_harmony_messages

        def chat(*args: Any, **kwargs: Any) -> Any:
            messages, prompts = render_chat(*args, **kwargs)
            self._take(prompts, [])
            return messages, prompts

        def responses(*args: Any, **kwargs: Any) -> Any:
            prompt = render_responses(*args, **kwargs)
            self._take([prompt], [])
            return prompt

        harmony._make_request_with_harmony = chat  # noqa: SLF001
        harmony.render_responses_harmony_messages = responses

    def set_context(self, tokens: int) -> None:
        self._api.set_context(tokens)

    @property
    def vllm_config(self) -> Any:
        return self._api.client.vllm_config

    async def check(
        self,
        route: Route,
        body: bytes,
        context: int,
        fetched: Mapping[str, bytes],
        adapter: str = "",
    ) -> CheckedBody:
        """`fetched`: images by URL. Raises BatonError for what is wrong with the body."""
        names: list[str] = []
        ignored = IgnoredFields(names.append, refuses=self._refuses_unknown)
        given = checked_fields(route, body, self._limits, ignored)
        count_images(route, given, self._limits, takes_images=self._takes_images)
        self._api.set_context(context)
        images = RequestImages(self._limits, fetched)
        images.begin()
        try:
            api_request = ApiRequest(route, body, Origin("check"), adapter)
            checked = await self._checked(api_request, given)
        except BatonError as error:
            if images.missing and images.error is None:
                return CheckedBody(missing_images=images.missing)
            raise images.error or error from None
        return replace(checked, session=session_of(route, given), ignored=names)

    async def _checked(self, api_request: ApiRequest, given: dict[str, Any]) -> CheckedBody:
        route, body, choices = api_request.route, api_request.body, 1
        self._prompts.clear()
        try:
            self._check_pieces(route, given)
            request = self._api.parse(route, body)
            choices = getattr(request, "n", None) or 1
            if self._api.harmony is not None:
                check_harmony(given)
            await self._api.resolve(request)
            self._left = _renderings(route, given)
            self._keeps_last = bool(given.get("echo"))
            answer = await self._api.handle(route, request, api_request)
        except _Rendered:
            ids, most = sum(len(prompt.token_ids) for prompt in self._prompts), self._limits
            param = CONVERSATION.get(route, "prompt")
            check_size(param, "prompt tokens", ids, most.prompt_tokens_max, "prompt_tokens_max")
            answers = len(self._prompts) * choices
            check_size("n", "answers", answers, most.generations_max, "generations_max")
            left, calls = without_conversation(route, given)
            size, what = len(left), "bytes beside its conversation"
            check_size("body", what, size, most.fields_bytes_max, "fields_bytes_max")
            return CheckedBody(
                body=left,
                prompts=list(self._prompts),
                tool_calls=0 if self._api.harmony is not None else calls,
                is_stream=bool(given.get("stream")),
                has_logprobs=any(given.get(name) for name in LOGPROBS),
            )
        except ValidationError as error:
            raise from_validation(error) from error
        except Exception as error:
            raise as_bad_request(api_request, error) from error
        finally:
            self._left = 0
        if isinstance(answer, ErrorResponse):
            raise from_response(answer)
        if not isinstance(answer, BaseModel):
            raise BatonError(Code.INVALID_REQUEST, "the request has no prompt")
        return CheckedBody(answer=answer_bytes(route, answer))

    def _take(self, prompts: Any, conversation: Any) -> None:
        """Ends the request with its last prompt."""
        if not self._left:
            return
        last = dict(conversation[-1]) if conversation and self._keeps_last else {}
        self._prompts += [
            RenderedPrompt(
                list(prompt["prompt_token_ids"]), prompt.get("prompt"), last, self._images(prompt)
            )
            for prompt in prompts
        ]
        self._left -= 1
        if not self._left:
            raise _Rendered

    def _images(self, prompt: Any) -> list[ImageFeatures]:
        if prompt["type"] not in ("token", "multimodal"):
            raise BatonError(Code.UNSUPPORTED_PARAMETER, "only text and images are supported")
        images = images_of(prompt)
        mib = -(-sum(len(image.data) for image in images) >> 20)
        most, key = self._limits.image_features_mib_max, "image_features_mib_max"
        check_size("image_url", "MiB of processed images", mib, most, key)
        return images

    def _check_pieces(self, route: Route, given: dict[str, Any]) -> None:
        """The conversation a few messages at a time, so that a wrong one is found with the errors
        of few. Raises BatonError."""
        name = CONVERSATION.get(route)
        messages = given.get(name) if name is not None else None
        if name is None or not isinstance(messages, list):
            return
        if route is Route.BATCH:
            for conversation in messages:
                self._check_pieces(Route.CHAT, {**given, "messages": conversation})
            return
        needed = {key: given[key] for key in ("model", "max_tokens") if key in given}
        for piece in pieces(messages):
            part = [message for _, message in piece]
            if part == messages:
                return  # the whole is checked next
            try:
                self._api.parse(route, json.dumps(needed | {name: part}).encode())
            except ValidationError as error:
                raise from_validation(error, [at for at, _ in piece]) from error


def check_harmony(given: dict[str, Any]) -> None:
    """Raises BatonError for what such a model's conversation would be needed for later."""
    if given.get("enable_response_messages"):
        name = "enable_response_messages"
        refuse(name, f"{name!r} is not supported with this model")


def _renderings(route: Route, given: dict[str, Any]) -> int:
    """How often vLLM renders for the request until it generates."""
    if route is Route.BATCH:
        return len(given["messages"])
    return 1 if route in GENERATING else 0
