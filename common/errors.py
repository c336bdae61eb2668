"""The one error tree, and the table that says how each error looks from outside.

Theory of operation: every failure that crosses a process or reaches a client is a `BatonError` with
a `Code`. The code alone decides HTTP status, OpenAI error type and whether a retry may help, so
that two daemons can never disagree about them. Foreign exceptions are translated once, at the
adapter that met them, with ``raise ... from``. The message is one sentence for a person; it never
holds prompt text, secrets or a traceback.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Code(enum.StrEnum):
    """What went wrong. Wire value: the string; never rename one, only add."""

    INVALID_REQUEST = "invalid_request"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    STREAM_GONE = "stream_gone"
    STREAM_CONFLICT = "stream_conflict"
    INVALID_API_KEY = "invalid_api_key"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    BODY_TOO_LARGE = "body_too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    REQUEST_TIMEOUT = "request_timeout"
    QUEUE_FULL = "queue_full"
    OVERLOADED = "overloaded"
    PREEMPTED = "preempted"
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
class Face:
    """How a code looks from outside: HTTP status, OpenAI error `type`, whether a retry may help."""

    http_status: int
    openai_type: str
    retryable: bool


_BAD = "invalid_request_error"
_OVERLOADED = "overloaded_error"
_SERVER = "server_error"

FACES: dict[Code, Face] = {
    Code.INVALID_REQUEST: Face(400, _BAD, retryable=False),
    Code.MODEL_NOT_FOUND: Face(404, _BAD, retryable=False),
    Code.NOT_FOUND: Face(404, _BAD, retryable=False),
    Code.STREAM_GONE: Face(410, _BAD, retryable=False),
    Code.STREAM_CONFLICT: Face(409, _BAD, retryable=False),
    Code.INVALID_API_KEY: Face(401, _BAD, retryable=False),
    Code.METHOD_NOT_ALLOWED: Face(405, _BAD, retryable=False),
    Code.CONTEXT_LENGTH_EXCEEDED: Face(400, _BAD, retryable=False),
    Code.UNSUPPORTED_PARAMETER: Face(400, _BAD, retryable=False),
    Code.BODY_TOO_LARGE: Face(413, _BAD, retryable=False),
    Code.HEADERS_TOO_LARGE: Face(431, _BAD, retryable=False),
    Code.REQUEST_TIMEOUT: Face(408, _BAD, retryable=True),
    Code.QUEUE_FULL: Face(429, _OVERLOADED, retryable=True),
    Code.OVERLOADED: Face(503, _OVERLOADED, retryable=True),
    Code.PREEMPTED: Face(503, _OVERLOADED, retryable=True),
    Code.RATE_LIMITED: Face(429, "rate_limit_error", retryable=True),
    Code.RETRY_BUDGET: Face(503, _OVERLOADED, retryable=True),
    Code.NO_CAPACITY: Face(503, _OVERLOADED, retryable=True),
    Code.ROUTER_UNREACHABLE: Face(503, _OVERLOADED, retryable=True),
    Code.WORKER_LOST: Face(500, _SERVER, retryable=True),
    Code.STREAM_INTERRUPTED: Face(500, _SERVER, retryable=True),
    Code.KV_TRANSFER_FAILED: Face(500, _SERVER, retryable=True),
    Code.ENGINE_FAILED: Face(500, _SERVER, retryable=True),
    Code.REQUEST_QUARANTINED: Face(500, _SERVER, retryable=False),
    Code.CANCELLED: Face(499, _BAD, retryable=False),
    Code.DEADLINE_EXCEEDED: Face(504, _OVERLOADED, retryable=True),
    Code.DRAINING: Face(503, _OVERLOADED, retryable=True),
    Code.DUPLICATE_REQUEST: Face(409, _BAD, retryable=False),
    Code.WIRE_MISMATCH: Face(500, _SERVER, retryable=False),
    Code.CONFIG_INVALID: Face(500, _SERVER, retryable=False),
    Code.INTERNAL: Face(500, _SERVER, retryable=False),
}


class BatonError(Exception):
    """A failure with a code that every daemon and client reads the same way.

    `param` names the request field or configuration key at fault, where there is one.
    `retry_after_ms` is set on refusals that a later try may pass.
    """

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
        self.param = param
        self.retry_after_ms = retry_after_ms

    @property
    def face(self) -> Face:
        return FACES[self.code]


class ConfigError(BatonError):
    """A configuration that cannot be used; `param` is the dotted path of the key."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(Code.CONFIG_INVALID, f"{path}: {message}", param=path)


class WireError(BatonError):
    """A frame that is not what the wire promises; the peer's message is dropped and counted."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.WIRE_MISMATCH, message)
