"""The port to the full OpenAI surface.

Theory of operation: the plain path (text in, text out) is our own code. Everything else (tools,
schemas, reasoning, logprobs, n, the Responses and Messages APIs, tokenize) is vLLM's serving code.
It stands behind this port so that nothing else in the gateway depends on it or waits for its
import.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from common.errors import BatonError
from common.messages import ImageFeatures, Pooling, Structured
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.kinds import RequestSpec
from services.gateway.api.routes import Route
from services.gateway.auth.caller import ANONYMOUS, Caller
from services.gateway.streams.answer import FailureListener, TokenStream, Usage, usage_of
from services.gateway.streams.journal import Journal
from services.gateway.streams.phase_timer import PhaseTimer


@dataclass(frozen=True, slots=True)
class Origin:
    """An HTTP request without its body."""

    #: Id of the first generation for it; further ones are `request_id-1` and so on.
    request_id: str
    caller: Caller = ANONYMOUS
    #: Remaining time in which the first token is wanted; 0: none was given.
    deadline_ms: float = 0.0
    #: The client's x-session-id; empty: none was given.
    session: str = ""
    timer: PhaseTimer = field(default_factory=lambda: PhaseTimer(0.0), compare=False)
    #: The client wants to see the phases in the answer.
    timings: bool = False
    #: The client's, checked; empty: none was given.
    traceparent: str = ""
    ignored: IgnoredFields = field(default_factory=IgnoredFields, compare=False)


@dataclass(slots=True, eq=False)
class ApiRequest:
    """One HTTP request on its way through the port."""

    route: Route
    body: bytes
    origin: Origin
    #: Id of the LoRA adapter that it asks for; empty: none.
    adapter: str = ""
    #: Why it failed, once it did.
    error: BatonError | None = None
    #: Whether an engine has sent anything for it.
    has_output: bool = False
    #: The generations that it opened.
    specs: list[RequestSpec] = field(default_factory=list)
    #: The journals of these.
    journals: list[Journal] = field(default_factory=list)
    #: The answer is a stream of events.
    is_stream: bool = False
    #: What the body says of its session; the header of the request comes first.
    hinted_session: str = ""
    #: Whether a client reads the answer now; that of a resumable stream may have left.
    is_attended: Callable[[], bool] = lambda: True
    #: Held while one of its generations is opened, and until the loop has come round.
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def usage(self) -> Usage:
        """What the workers did for it: the prompt of every generation counts."""
        return usage_of(*self.journals)

    @property
    def session(self) -> str:
        """Empty: none."""
        return self.origin.session or self.hinted_session

    def next_id(self) -> str:
        opened = len(self.specs)
        request_id = self.origin.request_id
        return f"{request_id}-{opened}" if opened else request_id

    def next_timer(self) -> PhaseTimer:
        """Of the generation that is opened next."""
        return self.origin.timer.sibling() if self.specs else self.origin.timer

    def fail(self, error: BatonError) -> None:
        """Records the first error; later ones follow from it."""
        if self.error is None:
            self.error = error


@dataclass(frozen=True, slots=True)
class JsonReply:
    body: bytes


@dataclass(frozen=True, slots=True)
class EventReply:
    """Server-sent events, each as its bytes. The iterator raises BatonError when the stream
    fails."""

    chunks: AsyncIterator[bytes]


class RenderedPrompt(msgspec.Struct, frozen=True):
    token_ids: list[int]
    #: None where the client gave token ids.
    text: str | None = None
    #: Of its conversation, as the chat template had it; empty where nobody asks for it.
    last_message: dict[str, Any] = {}
    images: list[ImageFeatures] = []
    #: What a pooling model computes of it; None: tokens are generated.
    pooling: Pooling | None = None


class CheckedBody(msgspec.Struct, frozen=True):
    """What a helper process found in a good body: everything that takes long is done."""

    #: The whole answer, where no generation is needed; empty otherwise.
    answer: bytes = b""
    #: The request without its conversation.
    body: bytes = b""
    #: In the order in which they are generated for.
    prompts: list[RenderedPrompt] = []
    #: Calls of tools in the conversation; some parsers count on from there.
    tool_calls: int = 0
    #: What the body says of its session; empty: nothing.
    session: str = ""
    #: Fields that were passed over.
    ignored: list[str] = []
    #: The answer is a stream of events.
    is_stream: bool = False
    #: The answer has logprobs, so a helper process writes it, unless it is a stream.
    has_logprobs: bool = False
    #: Nothing else is known yet: the body names images by these URLs, which must be fetched before
    #: it is checked again.
    missing_images: list[str] = []
    #: Of a request to a pooling model, as its body has them.
    cache_salt: str = ""
    priority: int = 0

    @property
    def without_images(self) -> CheckedBody:
        """For who needs the prompts only to count their tokens."""
        bare = [replace(prompt, images=[]) for prompt in self.prompts or ()]
        return replace(self, prompts=bare) if bare else self


#: What the engines sent, as encoded `Delta`s, by generation.
Recorded = dict[str, list[msgspec.Raw]]

#: Has the answer to a checked request written elsewhere. Raises BatonError.
WriteAnswer = Callable[["ApiRequest", CheckedBody, Recorded], Awaitable[bytes]]


class FullApi(Protocol):
    """Who calls `answer` calls `end` in any case, when nothing more is needed: what still runs is
    then aborted."""

    async def answer(self, api_request: ApiRequest) -> JsonReply | EventReply:
        """Raises BatonError for a client's mistake and for a fleet that cannot serve."""
        ...

    def end(self, api_request: ApiRequest, reason: str) -> None: ...

    def set_context(self, tokens: int) -> None:
        """The longest sequence that the fleet takes has changed."""
        ...


class OpenStream(Protocol):
    """Starts a generation. Raises BatonError."""

    def __call__(
        self, spec: RequestSpec, stream: TokenStream, listener: FailureListener, caller: Caller
    ) -> None: ...


class CloseStream(Protocol):
    """Ends a generation whose tokens nobody wants; harmless after its end."""

    def __call__(self, spec: RequestSpec, reason: str) -> None: ...


#: Checks, renders and tokenizes a body. Raises BatonError for what is wrong with it.
CheckBody = Callable[[ApiRequest], Awaitable[CheckedBody]]

#: Raises BatonError for what no worker can compile, or not for this caller now.
CheckGrammar = Callable[[Structured, Caller], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Checks:
    """What helper processes do, because it may take long."""

    grammar: CheckGrammar
    body: CheckBody
    answer: WriteAnswer
