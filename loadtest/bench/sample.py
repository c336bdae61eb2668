"""The measurements of one request by its client."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """How a request can fail."""

    CONNECT = "connect"
    TIMEOUT = "timeout"
    #: 429 or 503; the code of the refusal follows.
    REFUSED = "refused"
    #: Any other status than 200.
    HTTP = "http"
    #: The stream contained an error event.
    ERROR_EVENT = "error_event"
    #: The stream ended without a finish reason.
    CUT = "cut"
    #: A chunk could not be decoded.
    GARBLED = "garbled"


@dataclass(slots=True)
class Sample:
    """One request. Instants are seconds since the start of the load, None until reached."""

    kind: str
    prompt: int
    output: int
    #: When the request was meant to be sent. Every latency counts from here.
    due: float
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    done: float | None = None
    chunks: int = 0
    #: Longest wait for a chunk after the first, in seconds.
    stall: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str = ""
    status: int = 0
    error: str = ""
    detail: str = ""
    retry_after: float | None = None
    #: TTFT as the header `server-timing` gives it.
    server_first_ms: float | None = None
    request_id: str = ""
    #: The load was stopped while the request was in flight.
    cancelled: bool = False
    #: A second try, after the `Retry-After` of a refusal.
    again: bool = False

    @property
    def ok(self) -> bool:
        return self.done is not None and not self.error

    @property
    def tokens(self) -> int:
        """What was generated, as far as is known."""
        return self.chunks if self.completion_tokens is None else self.completion_tokens

    @property
    def ttft_ms(self) -> float | None:
        return None if self.first is None else (self.first - self.due) * 1000

    @property
    def e2e_ms(self) -> float | None:
        return None if self.done is None else (self.done - self.due) * 1000

    @property
    def tpot_ms(self) -> float | None:
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) * 1000 / (self.tokens - 1)

    @property
    def usage_wrong(self) -> bool:
        """Ended well and named no usage, or not as many output tokens as it had to make."""
        return self.ok and (
            self.completion_tokens is None
            or (self.finish == "length" and self.completion_tokens != self.output)
        )
