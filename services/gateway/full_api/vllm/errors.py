"""Translates vLLM's errors into ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.serve import create_error_response

from common.errors import BatonError, Code

if TYPE_CHECKING:
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse

TOO_LONG = "maximum context length"
OUR_NAMES = {
    "--enable-auto-tool-choice and --tool-call-parser": "model.tool_parser",
    "--tool-call-parser": "model.tool_parser",
    "--reasoning-parser": "model.reasoning_parser",
}
_codes = {
    404: Code.MODEL_NOT_FOUND,
    501: Code.UNSUPPORTED_PARAMETER,
    503: Code.NO_CAPACITY,
}


def translated(error: Exception) -> BatonError:
    """The error of a request; a BatonError stays as it is."""
    if isinstance(error, BatonError):
        return error
    return from_response(create_error_response(error))


def from_response(response: ErrorResponse) -> BatonError:
    info: Any = response.error
    code = _codes.get(info.code, Code.INVALID_REQUEST if info.code < 500 else Code.INTERNAL)
    if code is Code.INVALID_REQUEST and TOO_LONG in info.message:
        code = Code.CONTEXT_LENGTH_EXCEEDED
    return BatonError(code, _first_line(info.message), param=info.param)


def from_validation(error: Any, indexes: Sequence[int] = ()) -> BatonError:
    """Of a pydantic ValidationError, its first error within an element of an array if there is one,
    else its first. `loc` names the field; pydantic's names for the members of a union are left out.
    `indexes`: of the elements in the whole array, where only some of them were given."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = next((found for found in errors if any(map(_is_index, found["loc"]))), errors[0])
    parts = [part for part in first["loc"] if _is_index(part) or _is_name(part)]
    nth = next((n for n, part in enumerate(parts) if _is_index(part)), -1)
    if indexes and nth >= 0:
        parts[nth] = indexes[parts[nth]]
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    message = first["msg"].removeprefix("Value error, ")
    sentence = f"{path}: {message}" if path and path not in message else message
    return BatonError(Code.INVALID_REQUEST, _first_line(sentence), param=path or None)


def _is_index(part: object) -> bool:
    return isinstance(part, int)


def _is_name(part: object) -> bool:
    return isinstance(part, str) and part.isidentifier() and part == part.lower()


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentence = lines[0] if lines else "the request was refused"
    for theirs, ours in OUR_NAMES.items():
        sentence = sentence.replace(theirs, ours)
    return sentence
