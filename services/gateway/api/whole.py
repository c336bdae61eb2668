"""The port to the whole OpenAI surface: what the plain path does not serve goes through here.

Theory of operation: the plain path (text in, text out) is ours. Everything else (tools, schemas,
reasoning, logprobs, n, the Responses and Messages APIs, tokenize) is vLLM's own serving code, which
stands behind this port so that nothing else in the gateway knows it, or waits for its import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import BatonError
from common.messages import Structured
from services.gateway.api.kinds import Call
from services.gateway.api.routes import Route
from services.gateway.auth.caller import ANONYMOUS, Caller
from services.gateway.streams.answer import Hears, TokenStream, Usage
from services.gateway.streams.journal import Journal
from services.gateway.streams.timing import Timing


@dataclass(frozen=True, slots=True)
class Origin:
    """What an HTTP request says beside its body. `request_id`: of the first call it makes; further
    ones are `request_id-1` and so on. `deadline_ms`: 0 = none. `timings`: the client wants to see
    `timing` in the answer. `traceparent`: empty when the client gave none."""

    request_id: str
    caller: Caller = ANONYMOUS
    deadline_ms: float = 0.0
    session: str = ""
    timing: Timing = field(default_factory=Timing, compare=False)
    timings: bool = False
    traceparent: str = ""


@dataclass(slots=True, eq=False)
class Asking:
    """One HTTP request on its way through the port. `context`: tokens that the fleet takes. `error`
    is why it failed, once it did; `spoke`: the engine has made something; `calls`: what it
    opened, `journals`: of these. `cached_tokens`: of the prompts, over all calls."""

    route: Route
    body: bytes
    origin: Origin
    context: int
    error: BatonError | None = None
    spoke: bool = False
    calls: list[Call] = field(default_factory=list)
    journals: list[Journal] = field(default_factory=list)
    cached_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """What the workers did for it: each call's prompt counts."""
        prompt = sum(len(journal.prompt_ids) for journal in self.journals)
        completion = sum(len(journal.emitted) for journal in self.journals)
        return Usage(prompt, completion, self.cached_tokens)

    def next_id(self) -> str:
        made = len(self.calls)
        request_id = self.origin.request_id
        return f"{request_id}-{made}" if made else request_id

    def fail(self, error: BatonError) -> None:
        """The first one counts."""
        if self.error is None:
            self.error = error


@dataclass(frozen=True, slots=True)
class Whole:
    """JSON."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Events:
    """Server-sent events, each as its bytes. Raises BatonError when the stream fails."""

    chunks: AsyncIterator[bytes]


class WholeApi(Protocol):
    """`ask` raises BatonError for what a client can do wrong, and for a fleet that cannot. The
    asker calls `end` in any case, when it needs no more: what is still running is then aborted."""

    async def ask(self, asking: Asking) -> Whole | Events: ...

    def end(self, asking: Asking, reason: str) -> None: ...


class Opens(Protocol):
    """The gateway, as the API's engine sees it."""

    def __call__(self, call: Call, stream: TokenStream, hears: Hears, caller: Caller) -> None: ...


class Closes(Protocol):
    def __call__(self, call: Call, reason: str) -> None: ...


Compiles = Callable[[Structured, Caller], Awaitable[None]]
"""Raises BatonError for what does not compile on a worker, or not for this caller now."""
