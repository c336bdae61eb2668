"""One live request in the gateway's table, and the table of its states."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.messages import Fleet, Journey, RequestBody, Submit
from common.prefix import prefix_hashes, prompt_digest
from common.wire import pack_ids
from services.gateway.api.kinds import Call
from services.gateway.auth.caller import Caller
from services.gateway.legs import DECODE, HELD, PLACED, QUEUE, RECOVERY, Legs
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


LEG_OF = {State.SUBMITTED: QUEUE, State.PLACED: PLACED, State.STREAMING: DECODE}


class IllegalTransitionError(Exception):
    """A defect: the core moved a request in a way that `TRANSITIONS` does not have."""


@dataclass(slots=True, eq=False)
class Entry:
    """`worker`: identity of the decode worker that streams it, empty until known. `deadline`:
    instant, 0 = none. `hold_until`: instant at which a held request fails, and a placed one that
    has not spoken is asked for again. `submitted`: a router may know it. `sent`: the attempt last
    submitted; `resubmitted`: more than once, so that two routers may have it. `deaths`: workers
    that were lost while it was theirs. `retry_at`: when it is submitted again after a refusal, 0 =
    at once. `legs`: where its time went. `cached_tokens`: prompt tokens that D did not compute.
    `left`: the worker that it left because nothing came from it, until it is placed."""

    call: Call
    stream: TokenStream
    answer: Hears
    caller: Caller
    hold_until: float
    deadline: float
    legs: Legs
    state: State = State.HELD
    worker: bytes = b""
    submitted: bool = False
    sent: int = 0
    resubmitted: bool = False
    deaths: frozenset[bytes] = frozenset()
    retry_at: float = 0.0
    cached_tokens: int = 0
    left: str = ""

    def move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"{self.state.value} -> {state.value}")
        if state not in TERMINAL:
            waiting = HELD if self.state in WAITING and self.attempt == 1 else RECOVERY
            self.legs.turn(LEG_OF.get(state, waiting), self.attempt)
        self.state = state

    def journey(self, code: str) -> Journey:
        """Its whole way, once it is over. `code`: why it failed."""
        legs, call, journal = self.legs, self.call, self.stream.journal
        first = legs.first_token
        return Journey(
            request_id=call.request_id,
            attempt=self.attempt,
            outcome=self.state.value,
            code=code,
            legs=legs.end(),
            prompt_tokens=len(journal.prompt_ids),
            completion_tokens=len(journal.emitted),
            cached_tokens=self.cached_tokens,
            ttft_ms=(first - legs.arrived) * 1000 if first else 0.0,
            itl_ms_max=legs.gap_max * 1000,
            traceparent=call.traceparent,
        )

    @property
    def attempt(self) -> int:
        return self.stream.journal.attempt

    def submission(self, now: float, fleet: Fleet | None) -> tuple[Submit, RequestBody]:
        """The current attempt, as the router wants it: prompt and what was emitted before it."""
        block_tokens = fleet.block_tokens if fleet is not None else 0
        journal, call, caller = self.stream.journal, self.call, self.caller
        ids = [*journal.prompt_ids, *journal.emitted]
        body = RequestBody(
            prompt_ids=pack_ids(ids),
            sampling=rest_of(call.sampling, len(journal.emitted)),
            cache_salt=caller.cache_salt,
            emitted=len(journal.emitted),
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
            prompt_digest=prompt_digest(pack_ids(journal.prompt_ids), caller.cache_salt),
            resumable=not obstacle(call.sampling, 1, fleet),
            prefix_hashes=prefix_hashes(body.prompt_ids, block_tokens, body.cache_salt),
        )
        return submit, body
