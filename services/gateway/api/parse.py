"""From the bytes of a request body to a checked request, or a 400 that names the field."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import msgspec

from common.errors import BatonError, Code
from services.gateway.api.fields import (
    MESSAGE_FIELDS,
    STREAM_OPTIONS,
    UNSUPPORTED,
    WITHOUT_EFFECT,
    is_no_op,
)
from services.gateway.api.ignored import IgnoredFields, shortened
from services.gateway.api.kinds import Kind
from services.gateway.api.request_bodies import ChatRequest, CompletionRequest, GenerationRequest

#: Bad keys of `logit_bias` that an error names.
BAD_KEYS_MAX = 8

_types: dict[Kind, type[GenerationRequest]] = {
    Kind.CHAT: ChatRequest,
    Kind.COMPLETION: CompletionRequest,
}
_supported = {
    kind: frozenset(field.name for field in msgspec.structs.fields(type_))
    for kind, type_ in _types.items()
}
_ABSENT = msgspec.Raw()


class _Either(msgspec.Struct):
    """Of any body, what tells its kind. The rest is skipped, and no object is made of it."""

    messages: msgspec.Raw = _ABSENT
    prompt: msgspec.Raw = _ABSENT


_either = msgspec.json.Decoder(_Either)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_decoders: dict[Kind, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(type_, strict=False) for kind, type_ in _types.items()
}
_bounds = {"<=": "less_than_equal", ">=": "greater_than_equal"}


def parse(kind: Kind, body: bytes, ignored: IgnoredFields) -> GenerationRequest:
    """Raises BatonError(INVALID_REQUEST | UNSUPPORTED_PARAMETER) with `param`."""
    try:
        fields = _object.decode(body)
        _check_fields(kind, fields, ignored)
        request: GenerationRequest = _decoders[kind].decode(body)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatonError(
            Code.INVALID_REQUEST, f"the request body is not valid JSON: {error}"
        ) from error
    _note_inner(request, fields, ignored)
    if isinstance(request, ChatRequest):
        _check_messages(request)
    return request


def kind_of(body: bytes) -> Kind:
    """Of a body for either kind. Raises BatonError(INVALID_REQUEST)."""
    try:
        given = _either.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        sentence = f"the request body is not a JSON object: {error}"
        raise BatonError(Code.INVALID_REQUEST, sentence) from error
    if given.messages is not _ABSENT:
        return Kind.CHAT
    if given.prompt is not _ABSENT:
        return Kind.COMPLETION
    raise BatonError(Code.INVALID_REQUEST, "the body needs messages, or a prompt")


def _check_fields(kind: Kind, fields: dict[str, msgspec.Raw], ignored: IgnoredFields) -> None:
    supported, unsupported = _supported[kind], UNSUPPORTED[kind]
    for name, raw in fields.items():
        if name in supported:
            continue
        if name in WITHOUT_EFFECT:
            ignored.add(name)
        elif name not in unsupported:
            ignored.add_unknown(name)
        elif not is_no_op(msgspec.json.decode(raw), unsupported[name]):
            refuse(name, f"{name!r} is not supported by this server")
    if "logit_bias" in fields:
        check_bias_keys(msgspec.json.decode(fields["logit_bias"]))


def _note_inner(
    request: GenerationRequest, fields: dict[str, msgspec.Raw], ignored: IgnoredFields
) -> None:
    """Takes note of unknown fields in objects whose types were checked."""
    if request.stream_options is not None:
        for name in _object.decode(fields["stream_options"]).keys() - STREAM_OPTIONS:
            ignored.add_unknown(f"stream_options.{name}")
    if isinstance(request, ChatRequest):
        for message in _objects.decode(fields["messages"]):
            for name in message.keys() - MESSAGE_FIELDS:
                ignored.add_unknown(f"messages[].{name}")


def check_bias_keys(biases: object) -> None:
    """The keys of `logit_bias` are token ids. Raises BatonError(INVALID_REQUEST) that names those
    that are none."""
    keys = biases if isinstance(biases, dict) else ()
    bad = [shortened(key) for key in keys if not re.fullmatch(r"\s*[+-]?\d+\s*", key)]
    if bad:
        sentence = (
            f"logit_bias: the keys must be token ids, and these are none: {bad[:BAD_KEYS_MAX]}"
        )
        raise BatonError(Code.INVALID_REQUEST, sentence, param="logit_bias")


def _check_messages(request: ChatRequest) -> None:
    for at, message in enumerate(request.messages):
        path = f"messages[{at}]"
        for name in ("tool_calls", "tools"):
            if getattr(message, name):
                refuse(f"{path}.{name}", f"{name!r} in a message is not supported by this server")
        if isinstance(message.content, list):
            for nth, part in enumerate(message.content):
                if isinstance(part, str) or part.type != "text" or part.text is None:
                    where = f"{path}.content[{nth}]"
                    refuse(where, f"{where}: only parts of type 'text' are supported")


def refuse(param: str, sentence: str) -> NoReturn:
    raise BatonError(Code.UNSUPPORTED_PARAMETER, sentence, param=param)


def _explained(text: str) -> BatonError:
    """From msgspec's message, `what - at `$.path``; for keys of a map `at `key` in `$.path``.
    A bound is named as vLLM names it, too."""
    what, _, where = text.partition(" - at ")
    path = re.search(r"`\$(.*)`", where)
    param = path[1].lstrip(".") if path else ""
    param = param.replace("[...]", "")
    missing = re.search(r"missing required field `(.*)`", what)
    if missing:
        param = ".".join(filter(None, (param, missing[1])))
        return BatonError(Code.INVALID_REQUEST, f"{param!r} is required", param=param)
    sentence = what.replace("`", "")
    for sign, kind in _bounds.items():
        if f" {sign} " in sentence:
            sentence += f" ({kind})"
    return BatonError(
        Code.INVALID_REQUEST, f"{param}: {sentence}" if param else sentence, param=param or None
    )
