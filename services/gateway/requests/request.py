"""One live request in the gateway's table, and the table of its states."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.errors import BatonError
from common.messages import Fleet, OtherCell, RequestBody, RequestSummary, Submit
from common.net.wire import pack_ids
from common.prefix import prefix_hashes, prompt_digest
from common.transitions import checked
from services.gateway.api.kinds import RequestSpec
from services.gateway.auth.caller import Caller
from services.gateway.requests.recovery import remaining_sampling, resume_obstacle
from services.gateway.streams.answer import FailureListener, TokenStream
from services.gateway.streams.phase_timer import (
    DECODE,
    HELD,
    PLACED,
    QUEUE,
    RECOVERY,
    PhaseTimer,
)


class State(enum.Enum):
    """Where a request is."""

    #: No router answers, or its worker was lost; it waits to be submitted.
    HELD = "held"
    #: The router has its current attempt.
    SUBMITTED = "submitted"
    #: The router has named a decode worker.
    PLACED = "placed"
    #: The current attempt has sent tokens.
    STREAMING = "streaming"
    #: The answer is complete.
    ENDED = "ended"
    #: The answer is an error, or ended with one.
    FAILED = "failed"
    #: The client left.
    CLOSED = "closed"


TERMINAL = frozenset({State.ENDED, State.FAILED, State.CLOSED})
_HELD, _STREAMING = State.HELD, State.STREAMING
"""Looked up for each live request at each tick, where a member of an enum takes a while."""
#: No worker is named for the current attempt.
WAITING = frozenset({State.HELD, State.SUBMITTED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.HELD: TERMINAL | {State.SUBMITTED, State.STREAMING},
    State.SUBMITTED: TERMINAL | {State.HELD, State.PLACED, State.STREAMING},
    State.PLACED: TERMINAL | {State.HELD, State.SUBMITTED, State.STREAMING},
    State.STREAMING: TERMINAL | {State.HELD},
    State.ENDED: frozenset(),
    State.FAILED: frozenset(),
    State.CLOSED: frozenset(),
}

PHASE_OF = {State.SUBMITTED: QUEUE, State.PLACED: PLACED, State.STREAMING: DECODE}


@dataclass(slots=True, eq=False)
class LiveRequest:
    """Instants are seconds of the core's monotonic clock."""

    #: What was asked for; it never changes.
    spec: RequestSpec
    #: Takes its deltas; `stream.journal` knows the tokens that the client has.
    stream: TokenStream
    #: Learns of its failure.
    answer: FailureListener
    #: Whose request it is.
    caller: Caller
    #: When it came.
    opened: float
    #: When it fails if it is still held.
    hold_until: float
    #: When its first token is no longer wanted; 0: never.
    deadline: float
    #: Where its time goes.
    timer: PhaseTimer
    state: State = State.HELD
    #: Identity of the decode worker that streams it; empty until known.
    worker: bytes = b""
    #: Whether any router may know it.
    submitted: bool = False
    #: The attempt that was submitted last; 0: none.
    sent: int = 0
    #: Whether that attempt was submitted more than once, so that two routers may have it.
    resubmitted: bool = False
    #: When it is submitted again after a refusal; 0: at once.
    retry_at: float = 0.0
    #: The router's refusal, while it is held for another try.
    refusal: BatonError | None = None
    #: When its current attempt is submitted again, should the router or the worker say nothing.
    ask_at: float = 0.0
    #: Seconds until the next time after that.
    ask_after: float = 0.0
    #: Whether no client reads its stream now.
    abandoned: bool = False
    #: Whether a second cell has it. It goes to no third.
    spilled: bool = False
    #: What its key did in the other one of its two cells when it came to this one.
    other_cell: OtherCell | None = None
    #: Identity of the worker that it left because it was lost or fell silent; empty once placed
    #: again.
    left_worker: str = ""
    #: Identity of the worker that keeps its KV, because the stream moves; empty once placed again.
    moved_from: str = ""

    @property
    def attempt(self) -> int:
        return self.stream.journal.attempt

    @property
    def silent_since(self) -> float:
        """When its last token came, or it itself."""
        return max(self.opened, self.timer.last_token)

    def is_due(self, now: float, token_wait: float, stall_wait: float) -> bool:
        """Whether a tick may do something for it now. It fails after `token_wait` seconds without a
        token; the worker of its stream may have stalled after `stall_wait`."""
        state = self.state
        if state is _HELD or (state is not _STREAMING and now >= self.ask_at):
            return True
        since = now - (stall_wait if state is _STREAMING else token_wait)
        return self.timer.last_token <= since and self.opened <= since

    def ask_in(self, seconds: float, now: float) -> None:
        """The current attempt is submitted again after `seconds` of silence, and then after twice
        as long each time."""
        self.ask_at, self.ask_after = now + seconds, 2 * seconds

    def move(self, state: State, now: float) -> None:
        """Raises IllegalTransitionError."""
        checked("request", TRANSITIONS, self.state, state)
        if state not in TERMINAL:
            waiting = HELD if self.state in WAITING and self.attempt == 1 else RECOVERY
            self.timer.enter(PHASE_OF.get(state, waiting), self.attempt, now)
        self.state = state

    def summary(self, code: str, now: float) -> RequestSummary:
        """For the router, once the request is over. `code`: why it failed, else empty."""
        timer, spec, journal = self.timer, self.spec, self.stream.journal
        first = timer.first_token
        return RequestSummary(
            request_id=spec.request_id,
            attempt=self.attempt,
            outcome=self.state.value,
            code=code,
            legs=timer.spans(now),
            prompt_tokens=len(journal.prompt_ids),
            completion_tokens=len(journal.emitted),
            cached_tokens=journal.cached_tokens,
            ttft_ms=(first - timer.arrived) * 1000 if first else 0.0,
            itl_ms_max=timer.gap_max * 1000,
            traceparent=spec.traceparent,
        )

    def submission(
        self, now: float, fleet: Fleet | None, *, recovers: bool
    ) -> tuple[Submit, RequestBody]:
        """The current attempt for the router: the prompt, and all tokens emitted before it.
        `recovers`: whether this gateway continues streams on other workers at all."""
        block_tokens = fleet.block_tokens if fleet is not None else 0
        journal, spec, caller = self.stream.journal, self.spec, self.caller
        salt = caller.salted(spec.cache_salt)
        ids = [*journal.prompt_ids, *journal.emitted]
        named_by = (salt, spec.images, spec.adapter)
        body = RequestBody(
            prompt_ids=pack_ids(ids),
            sampling=remaining_sampling(spec.sampling, len(journal.emitted)),
            cache_salt=salt,
            emitted=len(journal.emitted),
            images=spec.images,
            adapter=spec.adapter,
            pooling=spec.pooling,
        )
        submit = Submit(
            request_id=spec.request_id,
            attempt=journal.attempt,
            model=spec.model,
            prompt_tokens=len(ids),
            max_tokens=body.sampling.max_tokens,
            deadline_ms=max(1.0, (self.deadline - now) * 1000) if self.deadline else 0.0,
            key_id=caller.key_id,
            tenant=caller.tenant,
            limits=caller.limits,
            priority=caller.bounded(spec.priority),
            session=spec.session,
            local_reason=spec.local_reason,
            left=self.left_worker,
            moved_from=self.moved_from,
            abandoned=self.abandoned,
            prompt_digest=prompt_digest(pack_ids(journal.prompt_ids), *named_by),
            resumable=recovers and not resume_obstacle(spec.sampling, 1, fleet),
            prefix_hashes=prefix_hashes(body.prompt_ids, block_tokens, *named_by),
            adapter=spec.adapter,
            other_cell=self.other_cell,
        )
        return submit, body
