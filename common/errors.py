"""The one error tree, and the table that maps each error to HTTP.

Theory of operation: every failure that crosses a process or reaches a client is a `BatonError` with
a `Code`. The code alone decides the HTTP status, the OpenAI error type and whether a retry may
help, so that two daemons never disagree about them. An adapter translates foreign exceptions once,
with ``raise ... from``. The message is one sentence for a person; it never holds prompt text,
secrets or a traceback.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Code(enum.StrEnum):
    """The kind of a failure. The string goes over the wire: values are added and never renamed."""

    INVALID_REQUEST = "invalid_request"
    MODEL_NOT_FOUND = "model_not_found"
    ADAPTER_NOT_HELD = "adapter_not_held"
    NOT_FOUND = "not_found"
    STREAM_GONE = "stream_gone"
    STREAM_CONFLICT = "stream_conflict"
    INVALID_API_KEY = "invalid_api_key"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    ORIGIN_REFUSED = "origin_refused"
    OPERATORS_ONLY = "operators_only"
    NOT_SERVED = "not_served"
    HEADERS_TOO_LARGE = "headers_too_large"
    REQUEST_TIMEOUT = "request_timeout"
    QUEUE_FULL = "queue_full"
    OVERLOADED = "overloaded"
    PREEMPTED = "preempted"
    MOVED = "moved"
    RATE_LIMITED = "rate_limited"
    RETRY_BUDGET = "retry_budget"
    NO_CAPACITY = "no_capacity"
    ROUTER_UNREACHABLE = "router_unreachable"
    WORKER_LOST = "worker_lost"
    STREAM_INTERRUPTED = "stream_interrupted"
    KV_TRANSFER_FAILED = "kv_transfer_failed"
    ENGINE_FAILED = "engine_failed"
    REQUEST_QUARANTINED = "request_quarantined"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    DRAINING = "draining"
    DUPLICATE_REQUEST = "duplicate_request"
    WIRE_MISMATCH = "wire_mismatch"
    CONFIG_INVALID = "config_invalid"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class HttpMapping:
    """What a client of the HTTP API sees of a code."""

    #: HTTP status.
    status: int
    #: `type` of OpenAI's error object.
    openai_type: str
    #: Whether a retry may help.
    retryable: bool


_BAD = "invalid_request_error"
_OVERLOADED = "overloaded_error"
_SERVER = "server_error"

HTTP_MAPPINGS: dict[Code, HttpMapping] = {
    Code.INVALID_REQUEST: HttpMapping(400, _BAD, retryable=False),
    Code.MODEL_NOT_FOUND: HttpMapping(404, _BAD, retryable=False),
    Code.ADAPTER_NOT_HELD: HttpMapping(503, _OVERLOADED, retryable=True),
    Code.NOT_FOUND: HttpMapping(404, _BAD, retryable=False),
    Code.STREAM_GONE: HttpMapping(410, _BAD, retryable=False),
    Code.STREAM_CONFLICT: HttpMapping(409, _BAD, retryable=False),
    Code.INVALID_API_KEY: HttpMapping(401, _BAD, retryable=False),
    Code.METHOD_NOT_ALLOWED: HttpMapping(405, _BAD, retryable=False),
    Code.CONTEXT_LENGTH_EXCEEDED: HttpMapping(400, _BAD, retryable=False),
    Code.UNSUPPORTED_PARAMETER: HttpMapping(400, _BAD, retryable=False),
    Code.BODY_TOO_LARGE: HttpMapping(413, _BAD, retryable=False),
    Code.UNSUPPORTED_MEDIA_TYPE: HttpMapping(415, _BAD, retryable=False),
    Code.ORIGIN_REFUSED: HttpMapping(403, _BAD, retryable=False),
    Code.OPERATORS_ONLY: HttpMapping(403, _BAD, retryable=False),
    Code.NOT_SERVED: HttpMapping(501, _BAD, retryable=False),
    Code.HEADERS_TOO_LARGE: HttpMapping(431, _BAD, retryable=False),
    Code.REQUEST_TIMEOUT: HttpMapping(408, _BAD, retryable=True),
    Code.QUEUE_FULL: HttpMapping(429, _OVERLOADED, retryable=True),
    Code.OVERLOADED: HttpMapping(503, _OVERLOADED, retryable=True),
    Code.PREEMPTED: HttpMapping(503, _OVERLOADED, retryable=True),
    Code.MOVED: HttpMapping(503, _OVERLOADED, retryable=True),
    Code.RATE_LIMITED: HttpMapping(429, "rate_limit_error", retryable=True),
    Code.RETRY_BUDGET: HttpMapping(503, _OVERLOADED, retryable=True),
    Code.NO_CAPACITY: HttpMapping(503, _OVERLOADED, retryable=True),
    Code.ROUTER_UNREACHABLE: HttpMapping(503, _OVERLOADED, retryable=True),
    Code.WORKER_LOST: HttpMapping(500, _SERVER, retryable=True),
    Code.STREAM_INTERRUPTED: HttpMapping(500, _SERVER, retryable=True),
    Code.KV_TRANSFER_FAILED: HttpMapping(500, _SERVER, retryable=True),
    Code.ENGINE_FAILED: HttpMapping(500, _SERVER, retryable=True),
    Code.REQUEST_QUARANTINED: HttpMapping(500, _SERVER, retryable=False),
    Code.CANCELLED: HttpMapping(499, _BAD, retryable=False),
    Code.DEADLINE_EXCEEDED: HttpMapping(504, _OVERLOADED, retryable=True),
    Code.DRAINING: HttpMapping(503, _OVERLOADED, retryable=True),
    Code.DUPLICATE_REQUEST: HttpMapping(409, _BAD, retryable=False),
    Code.WIRE_MISMATCH: HttpMapping(500, _SERVER, retryable=False),
    Code.CONFIG_INVALID: HttpMapping(500, _SERVER, retryable=False),
    Code.INTERNAL: HttpMapping(500, _SERVER, retryable=False),
}


class BatonError(Exception):
    """A failure with a code that all daemons and clients interpret alike."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        #: The request field or configuration key at fault, if there is one.
        self.param = param
        #: Milliseconds after which a refused request may succeed; None if it will not.
        self.retry_after_ms = retry_after_ms

    @property
    def http(self) -> HttpMapping:
        return HTTP_MAPPINGS[self.code]


class ConfigError(BatonError):
    """A configuration that cannot be used. `param` is the dotted path of the key."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(Code.CONFIG_INVALID, f"{path}: {message}", param=path)


class WireError(BatonError):
    """A frame that cannot be decoded. The receiver drops and counts the peer's message."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.WIRE_MISMATCH, message)
