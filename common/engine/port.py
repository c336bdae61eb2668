"""The engine port: all that a worker daemon knows of the thing that computes tokens.

Two engines stand behind it: `common.engine.vllm_engine` (real) and `common.engine.sim` (modelled
time, real bytes through the real KV layer). An engine is opened before the event loop starts
(`common.engine.open`), because vLLM forks and a fork must not meet threads and sockets.

One key names one try: `rid#attempt` (`engine_key`). A request given to `add` ends in exactly one
`Output` with `finish_reason` or `error` set, unless it was aborted first; after `abort` no output
for it is delivered. An engine on P is given requests whose `ticket` says where the KV goes; they
end with reason `length` once all KV is computed, and the engine keeps the blocks until the ticket's
handoff ended (the `KvDone` event), its lease expired, or `abort`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from common.kv.messages import KvDone, KvStatus
from common.messages import Capacity, Load, PrefixDelta, Role, Sampling, Ticket, TokenLogprobs


def engine_key(request_id: str, attempt: int) -> str:
    """The engine's own id for one try of one request."""
    return f"{request_id}#{attempt}"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One try. `role` is what this engine does for it: PREFILL computes and hands over (ticket
    set), DECODE samples (ticket None: it computes the prompt itself). `emitted`: that many prompt
    tokens, the last ones, are output of earlier attempts."""

    request_id: str
    attempt: int
    role: Role
    prompt_ids: list[int]
    sampling: Sampling
    ticket: Ticket | None = None
    cache_salt: str | None = None
    emitted: int = 0

    @property
    def key(self) -> str:
        return engine_key(self.request_id, self.attempt)


class Output(msgspec.Struct, frozen=True):
    """What one engine step made for one request. `cached_tokens`: prompt tokens whose KV was not
    computed here (prefix cache or handoff), set with the first output. `stop_token`: the id that
    ended the text when `finish_reason` is `stop`; it is included in `token_ids`; -1 if none. A
    struct because one is made for every token: a frozen dataclass costs ten times as much."""

    key: str
    token_ids: list[int]
    finish_reason: str = ""
    stop_token: int = -1
    cached_tokens: int = 0
    error: str = ""
    message: str = ""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything that one wake-up of the engine brought: one engine step, or KV events, or both.
    `load`: as of this step, without the times that `Engine.load` adds."""

    outputs: list[Output] = field(default_factory=list)
    kv_done: list[KvDone] = field(default_factory=list)
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Fixed for the life of the engine. `fingerprint`: hex; equal fingerprints may exchange KV;
    `fingerprint_parts`: what it is made of.
    `kv_address`: `host:port` of the UCX listener."""

    model: str
    fingerprint: str
    kv_address: str
    capacity: Capacity
    fingerprint_parts: dict[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Methods are called from one event loop. All raise BatonError(ENGINE_FAILED) once it is
    dead."""

    @property
    def info(self) -> EngineInfo: ...

    def load(self) -> Load:
        """What it holds now; cheap."""
        ...

    async def add(self, request: EngineRequest) -> None:
        """Takes the request. Raises BatonError(INVALID_REQUEST | CONTEXT_LENGTH_EXCEEDED) if the
        engine's own validation refuses it; then no output follows."""
        ...

    async def abort(self, request_id: str, attempt: int) -> None:
        """Frees all that this try holds here, KV on lease included. Unknown ones are ignored."""
        ...

    def connect_kv(self, kv_address: str) -> None:
        """D: connects to a prefill worker's KV listener ahead of need. Idempotent; a failure shows
        when the connection is needed."""
        ...

    def kv_status(self) -> KvStatus | None:
        """The KV plane's counts and holds, at most half a second old; None before the first."""
        ...

    def prefix_news(self, *, whole: bool) -> Iterable[PrefixDelta]:
        """What its prefix cache gained and lost since the last call; `whole`: all it has, for a
        router that knows nothing. Nothing where the engine does not tell."""
        ...

    async def next_batch(self) -> Batch:
        """Waits for the next outputs or KV events. Single consumer."""
        ...

    async def watch(self) -> None:
        """Asks it for signs of life while it shows none; `load` says how long it owes one. Never
        returns."""
        ...

    async def close(self) -> None:
        """Ends the engine; idempotent; within 5 s, by force if need be."""
        ...
