"""What a prefill worker decides: which attempts it computes, and what it reports to the router.

Sans-IO. An attempt is computing until the engine reports that all its KV is there; the router is
told at once. The attempt then stays in the table while the engine holds its KV under a lease, so
that a drain waits for the handoff. The handoff may end before the engine's last output arrives,
because the two are reported over different channels. An `Abort` is always passed on to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from common.engine.port import Batch, EngineRequest, Output, engine_key
from common.errors import Code
from common.identity import attempt_of_pull, identity_of
from common.kv.messages import KvDone
from common.messages import (
    Abort,
    HeldAttempt,
    PairTrouble,
    Prefill,
    PrefillEnded,
    Role,
    Sampling,
)
from common.net.wire import unpack_ids
from common.worker.actions import (
    AbortInEngine,
    Action,
    AddToEngine,
    Dispatched,
    DrainOver,
    EngineRefused,
    Event,
    GatewayGone,
    ToRouter,
)

ATTEMPTS_PER_SEQ_MAX = 8
PREFILL_SAMPLING = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
"""P's one token is discarded, because all sampling happens on D. The request's own parameters do
not apply."""


@dataclass(slots=True)
class Attempt:
    """One attempt of one request on this worker."""

    request_id: str
    #: Number of the attempt, from 1.
    number: int
    #: When its `Prefill` arrived, in seconds, monotonic.
    arrived: float
    #: What routers are told of it.
    held: HeldAttempt
    #: Whether the engine gave its last output.
    computed: bool = False
    #: Whether the handoff ended, successfully or not.
    handoff_ended: bool = False
    #: How the last pull out of another worker's store ended; None if there was none.
    pull: KvDone | None = None


class PrefillCore:
    """The table of attempts. It holds at most `ATTEMPTS_PER_SEQ_MAX` times `max_num_seqs`; a
    `Prefill` over that is answered with NO_CAPACITY."""

    def __init__(self, name: str, incarnation: str, max_num_seqs: int) -> None:
        self._name = name
        self._incarnation = incarnation
        self._attempts_max = ATTEMPTS_PER_SEQ_MAX * max_num_seqs
        self._attempts: dict[str, Attempt] = {}
        #: Frames that cannot be decoded, and events that concern no attempt of the table.
        self.dropped = 0

    @property
    def active(self) -> int:
        """Attempts that a drain must wait for."""
        return len(self._attempts)

    def held_attempts(self) -> list[HeldAttempt]:
        """All attempts, the oldest first."""
        return [
            msgspec.structs.replace(attempt.held, started=attempt.computed)
            for attempt in self._attempts.values()
        ]

    def held_attempt(self, request_id: str, attempt: int) -> HeldAttempt | None:
        """None if the attempt is not in the table."""
        row = self._attempts.get(engine_key(request_id, attempt))
        return None if row is None else row.held

    def holds(self, key: str) -> bool:
        """Whether the attempt of this engine key is in the table."""
        return key in self._attempts

    def handle(self, event: Event, now: float) -> list[Action]:
        """The sole mutator of the table. `now` is in seconds, monotonic."""
        match event:
            case Dispatched(message=Prefill() as message):
                return self._dispatched(event, message, now)
            case Abort():
                return self._aborted(event)
            case Batch():
                actions = [action for done in event.kv_done for action in self._on_kv_done(done)]
                for output in event.outputs:
                    actions += self._output(output, now)
                return actions
            case EngineRefused():
                key = engine_key(event.request_id, event.attempt)
                return self._ended(key, now, error=event.code, message=event.message)
            case GatewayGone() | DrainOver():
                return []
            case _:
                self.dropped += 1
                return []

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._attempts) <= self._attempts_max
        for key, attempt in self._attempts.items():
            assert key == engine_key(attempt.request_id, attempt.number)

    def _dispatched(self, event: Dispatched, message: Prefill, now: float) -> list[Action]:
        key = engine_key(message.request_id, message.attempt)
        ticket = message.ticket
        if key in self._attempts:
            self.dropped += 1
            return []
        problem = ""
        if (ticket.prefill, ticket.prefill_incarnation) != (self._name, self._incarnation):
            problem = "the ticket names another incarnation of this worker"
        elif len(self._attempts) >= self._attempts_max:
            problem = f"{self._attempts_max} prefills are already held"
        if problem:
            return [ToRouter(self._answer(message, Code.NO_CAPACITY, problem))]
        prompt_ids = unpack_ids(event.body.prompt_ids)
        held = HeldAttempt(
            message.request_id,
            message.attempt,
            len(prompt_ids),
            event.body.sampling.max_tokens,
            decode=identity_of(ticket.decode, ticket.decode_incarnation),
            prefill=identity_of(self._name, self._incarnation),
        )
        self._attempts[key] = Attempt(message.request_id, message.attempt, now, held)
        request = EngineRequest(
            request_id=message.request_id,
            attempt=message.attempt,
            role=Role.PREFILL,
            prompt_ids=prompt_ids,
            sampling=PREFILL_SAMPLING,
            ticket=ticket,
            source=message.source,
            holder=message.holder,
            cache_salt=event.body.cache_salt,
            images=event.body.images,
            adapter=event.body.adapter,
        )
        return [AddToEngine(request)]

    def _aborted(self, event: Abort) -> list[Action]:
        self._attempts.pop(engine_key(event.request_id, event.attempt), None)
        return [AbortInEngine(event.request_id, event.attempt)]

    def _output(self, output: Output, now: float) -> list[Action]:
        if not (output.finish_reason or output.error):
            return []
        return self._ended(output.key, now, output.cached_tokens, output.error, output.message)

    def _ended(
        self, key: str, now: float, cached_tokens: int = 0, error: str = "", message: str = ""
    ) -> list[Action]:
        attempt = self._attempts.get(key)
        if attempt is None or attempt.computed:
            self.dropped += 1
            return []
        attempt.computed = True
        if attempt.handoff_ended or error:
            del self._attempts[key]
        ended = PrefillEnded(
            request_id=attempt.request_id,
            attempt=attempt.number,
            elapsed_ms=(now - attempt.arrived) * 1000,
            cached_tokens=cached_tokens,
            error=error,
            message=message,
            pull=attempt.pull.report if attempt.pull and not attempt.pull.error else None,
            pull_failed=attempt.pull.message if attempt.pull and attempt.pull.error else "",
        )
        return [ToRouter(ended)]

    def _on_kv_done(self, done: KvDone) -> list[Action]:
        request_id, number = attempt_of_pull((done.request_id, done.attempt))
        key = engine_key(request_id, number)
        attempt = self._attempts.get(key)
        if attempt is None:
            return []
        if done.side == "receive":
            attempt.pull = done
            return [ToRouter(_trouble(done, request_id))] if done.trouble else []
        attempt.handoff_ended = True
        if attempt.computed:
            del self._attempts[key]
        return []

    @staticmethod
    def _answer(message: Prefill, code: Code, sentence: str) -> PrefillEnded:
        return PrefillEnded(
            request_id=message.request_id,
            attempt=message.attempt,
            elapsed_ms=0.0,
            error=code,
            message=sentence,
        )


def _trouble(done: KvDone, request_id: str) -> PairTrouble:
    """A pull from this peer failed, however often it was asked."""
    return PairTrouble(
        request_id=request_id,
        attempt=done.attempt,
        prefill=done.peer,
        prefill_incarnation=done.peer_incarnation,
        kind=done.trouble,
        message=done.message,
    )
