"""Lines of output and error files, in OpenAI's shape, and what a batch counts of an answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from common.errors import BatonError
from services.gateway.api.response_bodies import error_object


class Usage(NamedTuple):
    """Tokens of one answer."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Counts(msgspec.Struct):
    """`usage` of a chat or completion, and of a response, which names it otherwise."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Counts | None = None


def usage_of(body: bytes) -> Usage:
    """Of an answer; nothing of one that does not say."""
    try:
        counts = msgspec.json.decode(body, type=_Answer).usage or _Counts()
    except msgspec.MsgspecError:
        return Usage()
    details = counts.prompt_tokens_details or counts.input_tokens_details or _Details()
    return Usage(
        counts.prompt_tokens or counts.input_tokens,
        details.cached_tokens,
        counts.completion_tokens or counts.output_tokens,
    )


def answered(batch: str, number: int, custom_id: str, request_id: str, body: bytes) -> bytes:
    """For the output file."""
    response = {"status_code": 200, "request_id": request_id, "body": msgspec.Raw(body)}
    return _entry(batch, number, custom_id, response, None)


def refused(batch: str, number: int, custom_id: str, request_id: str, error: BatonError) -> bytes:
    """For the error file: the request was made, and answered by an error."""
    body = {"error": error_object(error)}
    response = {"status_code": error.http.status, "request_id": request_id, "body": body}
    return _entry(batch, number, custom_id, response, None)


def not_run(batch: str, number: int, custom_id: str | None, code: str, sentence: str) -> bytes:
    """For the error file: the line is no request, or it was never answered."""
    return _entry(batch, number, custom_id, None, {"code": code, "message": sentence})


def _entry(
    batch: str, number: int, custom_id: str | None, response: Any, error: dict[str, str] | None
) -> bytes:
    entry = {
        "id": f"batch_req_{batch.removeprefix('batch_')}_{number}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(entry) + b"\n"
