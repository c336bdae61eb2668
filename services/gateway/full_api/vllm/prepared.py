"""A request whose conversation a helper process has rendered: what is left of it here.

vLLM's classes read what is left, whose size is bounded, and get the prompt where they would render
one. What they want to know of the conversation later is kept: the role of its last message, how
many calls of tools it had, and blocks that change the tools.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from vllm.inputs import tokens_input

from common.messages import ImageFeatures
from services.gateway.api.routes import Route
from services.gateway.full_api.fields import known_fields
from services.gateway.full_api.port import CheckedBody, RenderedPrompt

if TYPE_CHECKING:
    from services.gateway.full_api.vllm.serving import VllmApi

PLACEHOLDER = "x"
IMAGES = "baton_images"
"""A key of a prompt, beside vLLM's own."""
CALLS = ("function_call", "tool_use")
TOOL_CHANGES = ("tool_addition", "tool_removal")

#: The prompts of the request that this task answers, in the order in which vLLM would render them;
#: None where there is none, and vLLM renders.
_prompts: ContextVar[Iterator[RenderedPrompt] | None] = ContextVar("prompts", default=None)


def begin(prompts: list[RenderedPrompt]) -> None:
    """From now on this task, and those that it starts, have these prompts."""
    _prompts.set(iter(prompts))


def without_conversation(route: Route, given: dict[str, Any]) -> tuple[bytes, int]:
    """The body without its conversation, and the number of tool calls that were in it."""
    left, calls = known_fields(route, given), 0
    for name in ("documents", "previous_input_messages", "system"):
        left.pop(name, None)
    if route is Route.COMPLETION:
        left["prompt"] = PLACEHOLDER
    elif route is Route.RESPONSES:
        items = given["input"] if isinstance(given["input"], list) else []
        calls = sum(_calls(item) for item in items)
        left["input"] = PLACEHOLDER
    elif route is Route.BATCH:
        left["messages"] = [
            [{"role": messages[-1]["role"], "content": PLACEHOLDER}]
            for messages in given["messages"]
        ]
    else:
        messages = given["messages"]
        calls = sum(_calls(message) for message in messages)
        last = _last(messages if route is Route.CHAT else [{"role": "user"}])
        left["messages"] = [*_tool_changes(messages), last]
    return json.dumps(left).encode(), calls


def _last(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": messages[-1]["role"], "content": PLACEHOLDER}


def _calls(message: dict[str, Any]) -> int:
    if message.get("type") in CALLS:
        return 1
    if message.get("role") != "assistant":
        return 0
    calls = message.get("tool_calls")
    return (len(calls) if isinstance(calls, list) else 0) + len(_blocks(message, CALLS))


def _tool_changes(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    changes = [(message["role"], _blocks(message, TOOL_CHANGES)) for message in messages]
    return [{"role": role, "content": blocks} for role, blocks in changes if blocks]


def _blocks(message: dict[str, Any], types: tuple[str, ...]) -> list[Any]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") in types]


def restore(route: Route, request: Any, checked: CheckedBody) -> None:
    """Gives vLLM's request the calls of tools that its parsers count, in items that it can make
    messages of."""
    if not checked.tool_calls:
        return
    calls = {"role": "assistant", "tool_calls": [{}] * checked.tool_calls}
    if route is Route.RESPONSES:
        said = {"content": PLACEHOLDER}
        request.input = [calls | said, {"role": "user"} | said]
    elif route is Route.CHAT:
        request.messages = [calls, *request.messages]


def use_prompts(api: VllmApi) -> None:
    """From now on `api` takes the prompts of `begin` where vLLM would render one."""
    renderer, harmony = api.client.renderer, api.harmony
    render_chat, render_completion = renderer.render_chat_async, renderer.render_cmpl_async

    async def chat(*args: Any, **kwargs: Any) -> Any:
        prompts = _prompts.get()
        if prompts is None:
            return await render_chat(*args, **kwargs)
        await asyncio.sleep(0)  # the loop carries streams between the conversations of a batch
        prompt = next(prompts)
        last = [prompt.last_message] if prompt.last_message else []
        return [last], [_input(prompt, **kwargs)]

    async def completion(*args: Any, **kwargs: Any) -> Any:
        prompts = _prompts.get()
        if prompts is None:
            return await render_completion(*args, **kwargs)
        return [_input(prompt, **kwargs) for prompt in prompts]

    renderer.render_chat_async = chat
    renderer.render_cmpl_async = completion
    if harmony is not None:
        _use_harmony_prompts(harmony)


def _use_harmony_prompts(harmony: Any) -> None:
    """The same where prompts are made without a template."""
    render_chat = harmony._make_request_with_harmony  # noqa: SLF001 - vLLM has no other place
    render_responses = harmony.render_responses_harmony_messages

    def chat(request: Any, *args: Any, **kwargs: Any) -> Any:
        prompts = _prompts.get()
        if prompts is None:
            return render_chat(request, *args, **kwargs)
        return [], [_input(next(prompts), prompt_extras={"cache_salt": request.cache_salt})]

    def responses(messages: Any, **kwargs: Any) -> Any:
        prompts = _prompts.get()
        if prompts is None:
            return render_responses(messages, **kwargs)
        return _input(next(prompts), prompt_extras=kwargs)

    harmony._make_request_with_harmony = chat  # noqa: SLF001
    harmony.render_responses_harmony_messages = responses


def _input(prompt: RenderedPrompt, *, prompt_extras: dict[str, Any] | None = None, **_: Any) -> Any:
    salt = (prompt_extras or {}).get("cache_salt")
    made: Any = tokens_input(prompt.token_ids, prompt=prompt.text, cache_salt=salt)
    return made | {IMAGES: prompt.images} if prompt.images else made


def images_in(prompt: Any) -> tuple[ImageFeatures, ...]:
    """Of a prompt that vLLM passes on as it got it."""
    return tuple(prompt.get(IMAGES, ())) if isinstance(prompt, dict) else ()
