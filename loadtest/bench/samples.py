"""One request as its client saw it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a request can fail. A refusal by code is `refused` and the code; `cut`: a stream that
    ended without saying why it ended; `error_event`: one that said so."""

    CONNECT = "connect"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    HTTP = "http"
    ERROR_EVENT = "error_event"
    CUT = "cut"
    GARBLED = "garbled"


@dataclass(slots=True)
class Sample:
    """Seconds since the load began, None until then. `due`: when it was meant to be sent; every
    latency counts from there. `stall`: the longest wait for a chunk after the first.
    `server_first_ms`: what `server-timing` said. `cancelled`: the load was stopped under it."""

    kind: str
    prompt: int
    output: int
    due: float
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    done: float | None = None
    chunks: int = 0
    stall: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str = ""
    status: int = 0
    error: str = ""
    detail: str = ""
    retry_after: float | None = None
    server_first_ms: float | None = None
    request_id: str = ""
    cancelled: bool = False

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
