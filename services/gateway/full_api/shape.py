"""The shape of a body, checked before vLLM's classes see it: what is an array of what, how many,
how deep.

Those classes report every error of every element for every type that it might have been, so that a
few bytes can cost seconds and gigabytes. Here the first error ends the check. Each refusal names
the field and the key of `[gateway.limits]`. Every function raises BatonError(INVALID_REQUEST).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from common.config import RequestLimits
from common.errors import BatonError, Code
from services.gateway.api.bounds import check_size
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.routes import RERANKS, SCORES, Route
from services.gateway.full_api.fields import check_fields

#: The field with the conversation, by route.
CONVERSATION: dict[Route, str] = {
    Route.CHAT: "messages",
    Route.BATCH: "messages",
    Route.RESPONSES: "input",
    Route.MESSAGES: "messages",
    Route.COUNT_TOKENS: "messages",
    Route.TOKENIZE: "messages",
    **dict.fromkeys((Route.EMBEDDINGS, Route.CLASSIFY, Route.POOLING), "messages"),
}
#: The fields with token ids, by route.
TOKEN_IDS: dict[Route, str] = {
    Route.COMPLETION: "prompt",
    Route.TOKENIZE: "prompt",
    Route.DETOKENIZE: "tokens",
    **dict.fromkeys((Route.EMBEDDINGS, Route.CLASSIFY, Route.POOLING), "input"),
}
#: The fields with text to compare.
TEXTS: dict[Route, tuple[str, ...]] = {
    **dict.fromkeys(RERANKS, ("query", "documents")),
    **dict.fromkeys(
        SCORES, ("data_1", "data_2", "queries", "documents", "items", "text_1", "text_2")
    ),
}
#: The arrays of a message that its reader takes element by element.
LISTS = ("content", "tool_calls", "output", "summary")
PIECE_ELEMENTS = 16


def checked_fields(
    route: Route, body: bytes, limits: RequestLimits, ignored: IgnoredFields
) -> dict[str, Any]:
    """The fields of a body, all that can be known of them without vLLM. May raise
    BatonError(UNSUPPORTED_PARAMETER), too."""
    given = check_fields(route, body, ignored)
    check_shape(route, given, limits)
    return given


def check_shape(route: Route, given: dict[str, Any], limits: RequestLimits) -> None:
    ids = TOKEN_IDS.get(route)
    rest = dict(given)
    if ids is not None and ids in given:
        _check_prompts(ids, rest.pop(ids), limits)
    for texts in TEXTS.get(route, ()):
        if texts in given:
            _check_texts(texts, rest.pop(texts), limits)
    _check_elements(rest, limits)
    name = CONVERSATION.get(route)
    if name is not None and given.get(name) is not None:
        _check_conversation(route, name, given[name], limits)
    tools = given.get("tools")
    if tools is not None:
        for at, tool in enumerate(_array("tools", tools)):
            _object(f"tools[{at}]", tool)
        check_size("tools", "tools", len(tools), limits.tools_max, "tools_max")
        if _must_call(given.get("tool_choice")):
            size, what = len(msgspec.json.encode(tools)), "bytes in tools of which one must be used"
            check_size("tools", what, size, limits.schema_bytes_max, "schema_bytes_max")


def _must_call(choice: Any) -> bool:
    """Whether the answer has to match the tools, so that a structure is made of them."""
    kind = choice.get("type") if isinstance(choice, dict) else choice
    return kind not in (None, "auto", "none")


def pieces(messages: list[Any]) -> Iterator[list[tuple[int, Any]]]:
    """The messages a few at a time with their indexes, those of long arrays as several with a part
    of it each. A reader of all pieces has seen every element, and few of them at once."""
    piece: list[tuple[int, Any]] = []
    for at, message in enumerate(messages):
        for part in _parts(message):
            piece.append((at, part))
            if len(piece) == PIECE_ELEMENTS:
                yield piece
                piece = []
    if piece:
        yield piece


def _parts(message: Any) -> Iterator[Any]:
    for name in LISTS if isinstance(message, dict) else ():
        elements = message.get(name)
        if isinstance(elements, list) and len(elements) > PIECE_ELEMENTS:
            for at in range(0, len(elements), PIECE_ELEMENTS):
                yield message | {name: elements[at : at + PIECE_ELEMENTS]}
            return
    yield message


def _check_prompts(param: str, prompts: Any, limits: RequestLimits) -> None:
    """Text, token ids, or an array of either."""
    if prompts is None or isinstance(prompts, str):
        return
    ids = 0
    types = set(map(type, _array(param, prompts)))
    if types == {list}:
        for at, prompt in enumerate(prompts):
            if set(map(type, prompt)) != {int}:
                _refuse(f"{param}[{at}]", "must be token ids, at least one")
            ids += len(prompt)
    elif types == {int}:
        ids = len(prompts)
    elif types and types != {str}:
        _refuse(param, "must be text, token ids, or an array of either alone")
    if types != {int} and param == "input":
        check_size(param, "prompts", len(prompts), limits.inputs_max, "inputs_max")
    elif types != {int}:
        check_size(param, "prompts", len(prompts), limits.prompts_max, "prompts_max")
    check_size(param, "token ids", ids, limits.prompt_tokens_max, "prompt_tokens_max")


def _check_texts(param: str, texts: Any, limits: RequestLimits) -> None:
    """One text, or an array of them."""
    if texts is None or isinstance(texts, str):
        return
    if set(map(type, _array(param, texts))) - {str}:
        _refuse(param, "must be text, or an array of texts")
    check_size(param, "texts", len(texts), limits.inputs_max, "inputs_max")


def _check_elements(given: dict[str, Any], limits: RequestLimits) -> None:
    """Counts the members of all objects and arrays, level by level."""
    for name, value in given.items():
        level, depth, members = [value], 1, 0
        while level:
            check_size(name, "levels", depth, limits.json_depth_max, "json_depth_max")
            below: list[Any] = []
            for member in level:
                if isinstance(member, dict | list):
                    members += len(member)
                    most = limits.json_elements_max
                    check_size(name, "members", members, most, "json_elements_max")
                    below.extend(member.values() if isinstance(member, dict) else member)
            level, depth = below, depth + 1
    check_size("body", "fields", len(given), limits.json_elements_max, "json_elements_max")


def _check_conversation(route: Route, param: str, messages: Any, limits: RequestLimits) -> None:
    if route is not Route.BATCH:
        _check_messages(param, messages, limits)
        return
    many = _array(param, messages)
    check_size(param, "conversations", len(many), limits.prompts_max, "prompts_max")
    for at, conversation in enumerate(many):
        if not _array(f"{param}[{at}]", conversation):
            _refuse(f"{param}[{at}]", "must have a message")
        _check_messages(f"{param}[{at}]", conversation, limits)


def _check_messages(param: str, messages: Any, limits: RequestLimits) -> None:
    if isinstance(messages, str) and param == "input":
        return
    check_size(param, "messages", len(_array(param, messages)), limits.messages_max, "messages_max")
    parts = 0
    for at, message in enumerate(messages):
        where = f"{param}[{at}]"
        kind = _object(where, message).get("type")
        if not isinstance(kind if kind is not None else message.get("role"), str):
            _refuse(
                where, "must have a role" if param == "messages" else "must have a type or role"
            )
        for name in LISTS:
            elements = message.get(name)
            if not isinstance(elements, list):
                continue
            parts += len(elements)
            check_size(f"{where}.{name}", "parts", parts, limits.parts_max, "parts_max")
            for nth, part in enumerate(elements):
                if not part or not isinstance(part, dict | str):
                    _refuse(f"{where}.{name}[{nth}]", "must be an object that says what it is")


def _array(param: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse(param, "must be an array")
    return value


def _object(param: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        _refuse(param, "must be an object that says what it is")
    return value


def _refuse(param: str, what: str) -> NoReturn:
    raise BatonError(Code.INVALID_REQUEST, f"{param} {what}", param=param)
