"""One stream of a decode worker, and what is told of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from common.engine.port import ColdAfter, Output, engine_key
from common.identity import attempt_of_pull, identity_of
from common.kv.messages import KvDone
from common.messages import (
    CopiedAhead,
    Decode,
    DecodeStarted,
    Delta,
    HeldAttempt,
    KvReport,
    PairTrouble,
)
from common.worker.actions import EngineRefused

FRAME_POOLED_BYTES_MAX = 1 << 19
"""With what else is in it, less than a frame may have."""


@dataclass(slots=True)
class Stream:
    """One attempt of one request on this worker. Instants are in seconds, monotonic."""

    request_id: str
    #: Number of the attempt, from 1.
    attempt: int
    #: Name and incarnation of the gateway that gets the tokens.
    gateway: tuple[str, str]
    #: Where that gateway's stream socket is bound.
    endpoint: str
    #: When its `Decode` arrived.
    arrived: float
    #: Whether the report of its handoff is still to come.
    awaits_report: bool
    #: What routers are told of it.
    held: HeldAttempt
    #: KV tokens that are promised to it, in whole blocks.
    kv_tokens: int
    #: When its first token was made.
    first_token: float | None = None
    #: The report of its start, while it waits for the handoff's report.
    started: DecodeStarted | None = None
    #: Completion tokens sent.
    emitted: int = 0
    #: At how many tokens, its next step counted ahead, routers are told that it comes near to what
    #: it is promised; 0 = never.
    tell_at: int = 0
    #: How it ends once its engine has let it go; None: it stays.
    leaves: EngineRefused | None = None
    #: What its handoff moved; None if nothing was remote.
    kv: KvReport | None = None
    #: Milliseconds from its arrival until its remote KV was in place.
    kv_ms: float = 0.0

    @property
    def key(self) -> str:
        return engine_key(self.request_id, self.attempt)

    @property
    def tokens(self) -> int:
        """Of its prompt and its answer so far."""
        return self.held.prompt_tokens + self.emitted


def held_of(
    message: Decode, prompt_tokens: int, max_tokens: int, mine: tuple[str, str]
) -> HeldAttempt:
    """`mine`: name and incarnation of the worker."""
    ticket, holder = message.ticket, message.holder
    return HeldAttempt(
        message.request_id,
        message.attempt,
        prompt_tokens,
        max_tokens,
        decode=identity_of(*mine),
        prefill=identity_of(ticket.prefill, ticket.prefill_incarnation) if ticket else "",
        gateway=identity_of(message.gateway, message.gateway_incarnation),
        holder=identity_of(holder.name, holder.incarnation) if holder else "",
        kv_tokens=message.kv_tokens,
    )


def trouble_of(done: KvDone) -> PairTrouble:
    return PairTrouble(
        request_id=attempt_of_pull((done.request_id, done.attempt))[0],
        attempt=done.attempt,
        prefill=done.peer,
        prefill_incarnation=done.peer_incarnation,
        kind=done.trouble,
        message=done.message,
    )


def copied_ahead(done: KvDone) -> CopiedAhead:
    return CopiedAhead(
        request_id=done.request_id, attempt=done.attempt, held=done.held, message=done.message
    )


def with_drafter(done: KvDone, cold: ColdAfter) -> KvDone:
    """Tells with the handoff whether it left the drafter without KV."""
    report = done.report
    if not report.blocks or not (cold == "all" or (cold == "canonical" and report.canonical)):
        return done
    return msgspec.structs.replace(done, report=msgspec.structs.replace(report, drafter_cold=True))


def delta_of(stream: Stream, output: Output) -> Delta:
    return Delta(
        stream.request_id,
        stream.attempt,
        stream.emitted,
        output.token_ids,
        output.finish_reason,
        output.stop_token,
        output.cached_tokens,
        output.error,
        output.message,
        output.logprobs,
        output.prompt_logprobs,
        output.handed_over_tokens,
        output.stored_tokens,
        output.pooled,
    )


def in_frames(deltas: list[Delta]) -> Iterator[list[Delta]]:
    """The deltas in parts that fit into one message each: what is made of the prompts of a batch
    may be more than a frame holds."""
    part: list[Delta] = []
    size = 0
    for delta in deltas:
        size += len(delta.pooled)
        if part and size > FRAME_POOLED_BYTES_MAX:
            yield part
            part, size = [], len(delta.pooled)
        part.append(delta)
    yield part
