"""The timeline of a request: what the router records when it is over, and its clients decode.

Times are milliseconds. A record has ids, names, counts and times, and never text of a prompt or an
answer.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from common.messages import KvReport


class CandidateScore(msgspec.Struct, frozen=True):
    """A worker that could have been chosen; lower scores are better, compared left to right."""

    role: str
    name: str
    score: tuple[float, ...]


class Handoff(KvReport, frozen=True, kw_only=True):
    """What D reported of the handoff."""

    #: Share of the bytes that left before the prefill ended; None = no bytes moved.
    overlap: float | None = None


class WorkerTimes(msgspec.Struct, frozen=True):
    """By the workers' own clocks, since each received its order; None = not reached, or not yet."""

    #: When P had computed the prompt.
    prefill: float | None = None
    #: When D had P's KV.
    kv: float | None = None
    #: When D had made the first token.
    first_token: float | None = None


class CachedTokens(msgspec.Struct, frozen=True):
    """Prompt tokens that each worker did not compute; None = it has not reported yet."""

    prefill: int | None = None
    #: With a prefill worker, these include the tokens that were handed over.
    decode: int | None = None


class AttemptPhase(msgspec.Struct, frozen=True):
    """A phase of one attempt as the router observed it, since the router received the attempt."""

    phase: str
    start_ms: float
    #: None = the attempt is still in this phase.
    end_ms: float | None


class MoveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt came from the decode worker that its stream left."""

    #: As the metric names it: `drain`, `role`, `stop`, `evict`, `operator`, `room`, `budget`,
    #: `rebalance` or `unordered`.
    reason: str
    #: The same for an operator.
    sentence: str
    #: Names of both decode workers; the second is empty until it is placed.
    source: str
    target: str
    #: Tokens of prompt and answer so far, and those that the second one computed again; None = it
    #: has not reported yet.
    tokens: int
    recomputed_tokens: int | None = None
    #: Bytes of KV that came.
    bytes: int = 0
    #: From the end at the first worker to the next token at the second; None = not known.
    pause_ms: float | None = None
    #: Whether no worker had room, so that it waited in the queue.
    parked: bool = False


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt: where it was placed and why, and what became of it."""

    #: Its number, from 1.
    attempt: int
    state: str
    #: How it ended; empty while it is live.
    outcome: str
    #: Only while the router answers; not part of a timeline.
    received_ms_ago: int | UnsetType = UNSET
    total_ms: float
    #: The gateway's name.
    gateway: str
    prompt_tokens: int
    max_tokens: int
    #: Names of its workers; empty = none.
    prefill: str = ""
    decode: str = ""
    #: The placement policy that chose them; empty = it was not placed.
    policy: str = ""
    candidates: tuple[CandidateScore, ...] = ()
    #: None = it did not come from another decode worker.
    move: MoveRecord | None = None
    #: None = D reported no handoff.
    kv: Handoff | None = None
    workers_ms: WorkerTimes = WorkerTimes()
    cached_tokens: CachedTokens = CachedTokens()
    phases: tuple[AttemptPhase, ...] = ()
    #: What happened and why, for an operator.
    sentences: tuple[str, ...] = ()


class Phase(msgspec.Struct, frozen=True):
    """A phase of the request as its gateway measured it, since the first byte of the request."""

    phase: str
    #: Number of the attempt that it belongs to.
    attempt: int
    #: The worker that was busy with it, `p0>d0` for a transfer; empty = none.
    worker: str
    start_ms: float
    ms: float


class TimelineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request that is over: fields to search by, its phases, its attempts."""

    request_id: str
    #: Name of the model that it asked for.
    model: str = ""
    #: `ended`, `closed` (by the client), `failed`, `refused`, or `lost` (its gateway never told).
    outcome: str
    #: The error code; empty = none.
    code: str
    #: Why its last attempt ended as it did.
    sentence: str = ""
    total_ms: float
    ttft_ms: float
    #: Mean time per token after the first, pauses included.
    tpot_ms: float
    #: The longest pause between two tokens.
    itl_ms_max: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    tenant: str = ""
    key_id: str = ""
    #: Name of its priority class.
    priority: str = ""
    #: Name of the gateway of its last attempt.
    gateway: str = ""
    #: Attempts after the first.
    moves: int = 0
    #: The W3C trace context of the client's request; empty = it sent none.
    traceparent: str = ""
    #: In their order; their times sum to `total_ms`.
    phases: tuple[Phase, ...] = ()
    #: The attempts that are known, oldest first.
    attempts: tuple[AttemptRecord, ...] = ()

    def longest_phase(self) -> Phase | None:
        return max(self.phases, key=lambda phase: phase.ms, default=None)
