"""One live request in the gateway's table, and the table of its states."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.messages import RequestBody, Submit
from common.prefix import prefix_hashes
from common.wire import pack_ids
from services.gateway.api.kinds import Call
from services.gateway.auth.caller import Caller
from services.gateway.recovery import obstacle, rest_of
from services.gateway.streams.answer import Hears, TokenStream


class State(enum.Enum):
    """HELD: no router answers, or its worker was lost and it waits for another. SUBMITTED: the
    router has it. PLACED: a decode worker is named. STREAMING: it has spoken. ENDED: the answer is
    complete; FAILED: the answer says an error; CLOSED: the client left."""

    HELD = "held"
    SUBMITTED = "submitted"
    PLACED = "placed"
    STREAMING = "streaming"
    ENDED = "ended"
    FAILED = "failed"
    CLOSED = "closed"


TERMINAL = frozenset({State.ENDED, State.FAILED, State.CLOSED})
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


class IllegalTransitionError(Exception):
    """A defect: the core moved a request in a way that `TRANSITIONS` does not have."""


@dataclass(slots=True, eq=False)
class Entry:
    """`worker`: identity of the decode worker that streams it, empty until known. `deadline`:
    instant, 0 = none. `hold_until`: instant at which a held request fails, and a placed one that
    has not spoken is asked for again. `submitted`: a router may know it. `sent`: the attempt last
    submitted; `resubmitted`: more than once, so that two routers may have it. `deaths`: workers
    that were lost while it was theirs. `retry_at`: when it is submitted again after a refusal, 0 =
    at once. `left`: the worker that it left because nothing came from it, until it is placed."""

    call: Call
    stream: TokenStream
    answer: Hears
    caller: Caller
    hold_until: float
    deadline: float
    state: State = State.HELD
    worker: bytes = b""
    submitted: bool = False
    sent: int = 0
    resubmitted: bool = False
    deaths: frozenset[bytes] = frozenset()
    retry_at: float = 0.0
    left: str = ""

    def move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"{self.state.value} -> {state.value}")
        self.state = state

    @property
    def attempt(self) -> int:
        return self.stream.journal.attempt

    def submission(self, now: float, block_tokens: int) -> tuple[Submit, RequestBody]:
        """The current attempt, as the router wants it: prompt and what was emitted before it.
        `block_tokens`: as `Fleet` says."""
        journal, call, caller = self.stream.journal, self.call, self.caller
        ids = [*journal.prompt_ids, *journal.emitted]
        body = RequestBody(
            prompt_ids=pack_ids(ids),
            sampling=rest_of(call.sampling, len(journal.emitted)),
            cache_salt=caller.cache_salt,
        )
        submit = Submit(
            request_id=call.request_id,
            attempt=journal.attempt,
            prompt_tokens=len(ids),
            max_tokens=body.sampling.max_tokens,
            deadline_ms=max(1.0, (self.deadline - now) * 1000) if self.deadline else 0.0,
            key_id=caller.key_id,
            tenant=caller.tenant,
            limits=caller.limits,
            priority=caller.bounded(call.priority),
            session=call.session,
            local_reason=call.local_reason,
            left=self.left,
            resumable=not obstacle(call.sampling, emitted=1),
            prefix_hashes=prefix_hashes(body.prompt_ids, block_tokens, body.cache_salt),
        )
        return submit, body
