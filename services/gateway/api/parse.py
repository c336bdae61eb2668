"""From the bytes of a request body to a checked request, or a 400 that names the field."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from common.errors import BatonError, Code
from services.gateway.api.fields import UNSUPPORTED, is_no_op
from services.gateway.api.kinds import Kind
from services.gateway.api.request_bodies import ChatRequest, CompletionRequest, GenerationRequest

NAME_CHARS_MAX = 64

_types: dict[Kind, type[GenerationRequest]] = {
    Kind.CHAT: ChatRequest,
    Kind.COMPLETION: CompletionRequest,
}
_supported = {
    kind: frozenset(field.name for field in msgspec.structs.fields(type_))
    for kind, type_ in _types.items()
}
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decoders: dict[Kind, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(type_) for kind, type_ in _types.items()
}


def parse(kind: Kind, body: bytes) -> GenerationRequest:
    """Raises BatonError(INVALID_REQUEST | UNSUPPORTED_PARAMETER) with `param`."""
    try:
        fields = _top.decode(body)
        _check_fields(kind, fields)
        request: GenerationRequest = _decoders[kind].decode(body)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatonError(
            Code.INVALID_REQUEST, f"the request body is not valid JSON: {error}"
        ) from error
    if isinstance(request, ChatRequest):
        _check_messages(request)
    return request


def _check_fields(kind: Kind, fields: dict[str, msgspec.Raw]) -> None:
    supported, unsupported = _supported[kind], UNSUPPORTED[kind]
    for name, raw in fields.items():
        if name in supported:
            continue
        if name not in unsupported:
            refuse(shortened(name), f"unknown parameter {shortened(name)!r}")
        if not is_no_op(msgspec.json.decode(raw), unsupported[name]):
            refuse(name, f"{name!r} is not supported by this server")


def _check_messages(request: ChatRequest) -> None:
    for at, message in enumerate(request.messages):
        path = f"messages[{at}]"
        for name in ("refusal", "annotations", "tool_calls"):
            if getattr(message, name):
                refuse(f"{path}.{name}", f"{name!r} in a message is not supported by this server")
        if isinstance(message.content, list):
            for nth, part in enumerate(message.content):
                if part.type != "text" or part.text is None:
                    where = f"{path}.content[{nth}]"
                    refuse(where, f"{where}: only parts of type 'text' are supported")
        elif message.content is None and message.role != "assistant":
            raise BatonError(
                Code.INVALID_REQUEST, f"{path} has no content", param=f"{path}.content"
            )


def refuse(param: str, sentence: str) -> NoReturn:
    raise BatonError(Code.UNSUPPORTED_PARAMETER, sentence, param=param)


def _explained(text: str) -> BatonError:
    """From msgspec's message, `what - at `$.path``; for keys of a map `at `key` in `$.path``."""
    what, _, where = text.partition(" - at ")
    path = re.search(r"`\$(.*)`", where)
    param = path[1].lstrip(".") if path else ""
    param = param.replace("[...]", "")
    unknown = re.search(r"contains unknown field `(.*)`", what)
    if unknown:
        param = ".".join(filter(None, (param, shortened(unknown[1]))))
        return BatonError(Code.UNSUPPORTED_PARAMETER, f"unknown parameter {param!r}", param=param)
    missing = re.search(r"missing required field `(.*)`", what)
    if missing:
        param = ".".join(filter(None, (param, missing[1])))
        return BatonError(Code.INVALID_REQUEST, f"{param!r} is required", param=param)
    sentence = what.replace("`", "")
    return BatonError(
        Code.INVALID_REQUEST, f"{param}: {sentence}" if param else sentence, param=param or None
    )


def shortened(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else f"{name[:NAME_CHARS_MAX]}..."
