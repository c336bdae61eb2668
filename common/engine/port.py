"""The engine port: all that a worker daemon knows of the engine that computes tokens.

Two engines implement it: `common.engine.vllm.engine`, and `common.engine.sim.engine` with modelled
time and real bytes through the real KV layer. An engine is opened before the event loop starts
(`common.engine.open`), because vLLM forks, and a process that forks must have no threads and
sockets.

A key names one attempt: `REQUEST_ID#ATTEMPT` (`engine_key`). A request that is given to `add` ends
with exactly one `Output` that has `finish_reason` or `error` set, unless it was aborted first;
after `abort` no output is delivered for it. A stream that is told to `leave` ends with its key in
`Batch.left`, unless it ended first. On P the request's `ticket` names the D that gets the
KV. Such a request ends with reason `length` once all KV is computed, and the engine keeps the
blocks until the handoff ends (`KvDone`), its lease expires, or the attempt is aborted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import msgspec

from common.config import ModelConfig
from common.errors import BatonError, Code
from common.kv.messages import KvDone, KvStatus
from common.messages import (
    AdapterStatus,
    Capacity,
    CopyAhead,
    ImageFeatures,
    KvHolder,
    KvSource,
    Load,
    OrderStore,
    Pooling,
    PrefixDelta,
    Role,
    Sampling,
    Ticket,
    TokenLogprobs,
)

KEY_SEPARATOR = "#"

ColdAfter: TypeAlias = Literal["none", "all", "canonical"]
"""After which handoffs the engine's drafter lacks the KV of the prompt: after none, after all, or
after those in the canonical form, which has none of it."""


def engine_key(request_id: str, attempt: int) -> str:
    """The engine's id of one attempt of one request."""
    return f"{request_id}{KEY_SEPARATOR}{attempt}"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One attempt of one request."""

    request_id: str
    attempt: int
    #: PREFILL computes the prompt and hands its KV over; DECODE samples.
    role: Role
    prompt_ids: list[int]
    sampling: Sampling
    #: By which the KV is handed over; None if this engine computes the prompt and keeps its KV.
    ticket: Ticket | None = None
    #: Separates the cached prompts of tenants.
    cache_salt: str | None = None
    #: How many of the last prompt tokens are output of earlier attempts.
    emitted: int = 0
    #: A worker whose store has the beginning of the prompt; None: the router named none.
    source: KvSource | None = None
    #: A worker whose store gets copies of its blocks as they fill; None: none does.
    holder: KvHolder | None = None
    #: Images of the prompt, by their offsets.
    images: tuple[ImageFeatures, ...] = ()
    #: Id of the LoRA adapter with which it is computed; empty: none.
    adapter: str = ""
    #: What is computed of the prompt; None: tokens are generated.
    pooling: Pooling | None = None

    @property
    def key(self) -> str:
        return engine_key(self.request_id, self.attempt)


class Output(msgspec.Struct, frozen=True):
    """What one engine step generated for one request. It is a struct because one is made for every
    token: a frozen dataclass costs ten times as much."""

    #: `engine_key` of the attempt.
    key: str
    #: New tokens, the token that ended the text included.
    token_ids: list[int]
    #: A `FinishReason`, else empty.
    finish_reason: str = ""
    #: Token that ended the text, if `finish_reason` is `stop`; else -1.
    stop_token: int = -1
    #: In the first output: prompt tokens whose KV came from the prefix cache or a handoff.
    cached_tokens: int = 0
    #: A `Code`, else empty.
    error: str = ""
    message: str = ""
    #: One for each new token, if asked for.
    logprobs: list[TokenLogprobs] | None = None
    #: One for each prompt token from the second on, in the first output, if asked for.
    prompt_logprobs: list[TokenLogprobs] | None = None
    #: Those of `cached_tokens` that a handoff brought for this request.
    handed_over_tokens: int = 0
    #: In the first output: prompt tokens that are in the engine's prefix cache now.
    stored_tokens: int = 0
    #: As in `Delta`, in the only output of a request of a pooling model.
    pooled: bytes = b""


class Drafts(msgspec.Struct, frozen=True):
    """What one engine step did with the drafts of its requests (`[speculation]`)."""

    #: Tokens that were drafted, by their position in a draft.
    drafted: tuple[int, ...]
    #: Those of them that the model accepted.
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one wake-up of the engine brought: one engine step, or ended handoffs, or both."""

    #: Outputs of the step.
    outputs: list[Output] = field(default_factory=list)
    #: Handoffs that ended.
    kv_done: list[KvDone] = field(default_factory=list)
    #: Keys of streams that have left, after the last of their outputs.
    left: list[str] = field(default_factory=list)
    #: Load after the step, without the times that `Engine.load` adds.
    load: Load | None = None
    #: None: the step had no drafts.
    drafts: Drafts | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is fixed for the life of the engine."""

    #: Name by which clients ask for the model.
    model: str
    #: Hex; workers of equal fingerprints may exchange KV as it lies in memory.
    fingerprint: str
    #: `host:port` of the UCX listener.
    kv_address: str
    capacity: Capacity
    #: What the fingerprint is made of.
    fingerprint_parts: dict[str, str] = field(default_factory=dict)
    #: What requests must ask for; None: the engine generates.
    pooling: Pooling | None = None
    #: The method of `[speculation]`; empty: this engine drafts nothing.
    speculation: str = ""
    drafter_cold: ColdAfter = "none"
    #: Tokens that one step makes of a sequence at most.
    step_tokens: int = 1

    def check(self, request: EngineRequest) -> None:
        """Raises BatonError(INVALID_REQUEST) for a request that this engine is not for,
        BatonError(UNSUPPORTED_PARAMETER) for what it cannot do while it drafts tokens, and
        BatonError(CONTEXT_LENGTH_EXCEEDED) for a prompt that it cannot take."""
        wanted, asked = _task(self.pooling), _task(request.pooling)
        if wanted != asked:
            sentence = f"the model {self.model} is for the task {wanted}, not for {asked}"
            raise BatonError(Code.INVALID_REQUEST, sentence, param="model")
        if self.speculation and request.sampling.logprob_token_ids is not None:
            sentence = (
                "logprob_token_ids do not work where tokens are drafted (speculation.method is "
                f"{self.speculation}); ask for logprobs"
            )
            raise BatonError(Code.UNSUPPORTED_PARAMETER, sentence, param="logprob_token_ids")
        tokens, output = len(request.prompt_ids), 1 if self.pooling is None else 0
        most = self.capacity.max_model_len - output
        if tokens > most:
            sentence = f"the prompt has {tokens} tokens, the model takes {most}"
            sentence += " and at least one of output" if output else ""
            raise BatonError(Code.CONTEXT_LENGTH_EXCEEDED, sentence)


def pooling_of(model: ModelConfig) -> Pooling | None:
    """What workers of this model compute of a prompt; None: they generate."""
    if not model.pools:
        return None
    return Pooling(task="embed" if model.task == "embed" else "classify")


def _task(pooling: Pooling | None) -> str:
    return "generate" if pooling is None else pooling.task


class Engine(Protocol):
    """All methods are called from one event loop. They raise BatonError(ENGINE_FAILED) once the
    engine is dead."""

    @property
    def info(self) -> EngineInfo: ...

    def load(self) -> Load:
        """What the engine holds now. The call is cheap."""
        ...

    async def add(self, request: EngineRequest) -> None:
        """Accepts the request, and loads its adapter first if that is not in memory; the engine is
        awake. Raises BatonError(INVALID_REQUEST | CONTEXT_LENGTH_EXCEEDED | ADAPTER_NOT_HELD) if
        the engine refuses it; no output follows then."""
        ...

    async def abort(self, request_id: str, attempt: int) -> None:
        """Frees all that this attempt holds here, KV under a lease included. An unknown attempt is
        ignored."""
        ...

    def leave(self, request_id: str, attempt: int) -> None:
        """On D, this stream goes on elsewhere. It ends with the step that runs, whose tokens are
        delivered as ever (one that runs ahead of it is lost), and `Batch.left` names it. The KV of
        all its tokens but the last stays for `[kv] keep_ms`, or until `hand_over` has given it
        away, if it is all there. A later `KvDone` of side `send` tells that it is freed. Never
        waits."""
        ...

    def hand_over(self, ticket: Ticket, kept_attempt: int) -> None:
        """On D, what is or will be kept of this attempt of the ticket's request is for its D. Where
        nothing is, that D is told so at once. Never waits."""
        ...

    def prefetch(self, request: EngineRequest) -> None:
        """The request waits in the router's queue and will probably be added: the beginning of its
        prompt is brought to the memory of the store from its `source`, if that costs nobody else
        time. Never waits. `abort` takes it back."""
        ...

    def copy_ahead(self, order: CopyAhead) -> None:
        """On D, the blocks of this running stream go to the store of the order's holder from now
        on, to nobody's if it has none. Where it has one, a `KvDone` of side `copy` tells once when
        that has the blocks or gets no more, unless the stream ends before. Never waits."""
        ...

    def adapters(self) -> tuple[AdapterStatus, ...]:
        """The LoRA adapters that requests may name, and those that could not be loaded."""
        ...

    async def load_adapter(self, name: str, path: str) -> None:
        """Requests may name the adapter of these files from now on. Idempotent. Raises BatonError
        with what is wrong with it."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """No new request may name it; what runs with it goes on. Raises BatonError(NOT_FOUND)."""
        ...

    def connect_kv(self, kv_address: str) -> None:
        """On D, begins to connect to a prefill worker's KV listener ahead of need. Idempotent; a
        failure shows when the connection is needed."""
        ...

    def order_store(self, order: OrderStore) -> None:
        """What an operator wants of blocks of the store. Never waits."""
        ...

    def kv_status(self) -> KvStatus | None:
        """Counts and holds of the KV plane, at most half a second old; None before the first
        report."""
        ...

    def prefix_cache_delta(self, *, whole: bool) -> Iterable[PrefixDelta]:
        """What the prefix cache gained and lost since the last call, or with `whole` all that it
        has, for a router that knows nothing. Empty if the engine does not publish it."""
        ...

    async def sleep(self) -> bool:
        """Gives the memory of its KV back and forgets all cached prompts; its weights stay. Returns
        whether it sleeps: it does not while it has requests or keeps KV. Idempotent."""
        ...

    async def wake(self) -> None:
        """From now on it accepts requests again. Idempotent."""
        ...

    async def next_batch(self) -> Batch:
        """Waits for the next outputs or ended handoffs. It has a single consumer."""
        ...

    async def watch(self) -> None:
        """Probes the engine while it shows no step; `load` has the time for which it did not
        answer. Never returns."""
        ...

    async def close(self) -> None:
        """Ends the engine within 5 s, by force if need be. Idempotent."""
        ...
