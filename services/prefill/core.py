"""What a prefill worker decides: which tries it computes, and what it tells the router.

Sans-IO. A try is computing until the engine says that all its KV is there, which the router hears
at once; it stays in the table while the engine holds its KV on lease, so that a drain waits for the
handoff. The handoff may end before the engine's own last word arrives, since they come by two ways.
An `Abort` is always passed on to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from common.engine.port import Batch, EngineRequest, Output, engine_key
from common.errors import Code
from common.kv.messages import KvDone
from common.messages import Abort, Held, Prefill, PrefillEnded, Role, Sampling
from common.wire import unpack_ids
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

TRIES_PER_SEQ_MAX = 8
PREFILL_SAMPLING = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
"""P's one token is thrown away (all sampling happens on D), so nothing of the request's applies."""


@dataclass(slots=True)
class Try:
    """`computed`: the engine said its last word. `handed`: the handoff ended, well or not."""

    request_id: str
    attempt: int
    arrived: float
    held: Held
    computed: bool = False
    handed: bool = False


class PrefillCore:
    """`tries_max` bounds the table; a Prefill over it is answered with NO_CAPACITY."""

    def __init__(self, name: str, incarnation: str, max_num_seqs: int) -> None:
        self._name = name
        self._incarnation = incarnation
        self._tries_max = TRIES_PER_SEQ_MAX * max_num_seqs
        self._tries: dict[str, Try] = {}
        self.dropped = 0

    @property
    def active(self) -> int:
        return len(self._tries)

    def holding(self) -> list[Held]:
        """Oldest first."""
        return [
            msgspec.structs.replace(each.held, started=each.computed)
            for each in self._tries.values()
        ]

    def held(self, request_id: str, attempt: int) -> Held | None:
        each = self._tries.get(engine_key(request_id, attempt))
        return None if each is None else each.held

    def handle(self, event: Event, now: float) -> list[Action]:
        """The sole mutator. `now`: seconds, monotonic."""
        match event:
            case Dispatched(message=Prefill() as message):
                return self._dispatched(event, message, now)
            case Abort():
                return self._aborted(event)
            case Batch():
                for done in event.kv_done:
                    self._handed(done)
                return [a for output in event.outputs for a in self._output(output, now)]
            case EngineRefused():
                key = engine_key(event.request_id, event.attempt)
                return self._ended(key, now, error=event.code, message=event.message)
            case GatewayGone() | DrainOver():
                return []
            case _:
                self.dropped += 1
                return []

    def check_invariants(self) -> None:
        assert len(self._tries) <= self._tries_max
        for key, each in self._tries.items():
            assert key == engine_key(each.request_id, each.attempt)

    def _dispatched(self, event: Dispatched, message: Prefill, now: float) -> list[Action]:
        key = engine_key(message.request_id, message.attempt)
        ticket = message.ticket
        if key in self._tries:
            self.dropped += 1
            return []
        problem = ""
        if (ticket.prefill, ticket.prefill_incarnation) != (self._name, self._incarnation):
            problem = "the ticket names another incarnation of this worker"
        elif len(self._tries) >= self._tries_max:
            problem = f"{self._tries_max} prefills are already held"
        if problem:
            return [ToRouter(self._answer(message, Code.NO_CAPACITY, problem))]
        prompt_ids = unpack_ids(event.body.prompt_ids)
        held = Held(
            message.request_id,
            message.attempt,
            len(prompt_ids),
            event.body.sampling.max_tokens,
            decode=f"{ticket.decode}|{ticket.decode_incarnation}",
            prefill=f"{self._name}|{self._incarnation}",
        )
        self._tries[key] = Try(message.request_id, message.attempt, now, held)
        request = EngineRequest(
            request_id=message.request_id,
            attempt=message.attempt,
            role=Role.PREFILL,
            prompt_ids=prompt_ids,
            sampling=PREFILL_SAMPLING,
            ticket=ticket,
            cache_salt=event.body.cache_salt,
        )
        return [AddToEngine(request)]

    def _aborted(self, event: Abort) -> list[Action]:
        self._tries.pop(engine_key(event.request_id, event.attempt), None)
        return [AbortInEngine(event.request_id, event.attempt)]

    def _output(self, output: Output, now: float) -> list[Action]:
        if not (output.finish_reason or output.error):
            return []
        return self._ended(output.key, now, output.cached_tokens, output.error, output.message)

    def _ended(
        self, key: str, now: float, cached_tokens: int = 0, error: str = "", message: str = ""
    ) -> list[Action]:
        each = self._tries.get(key)
        if each is None or each.computed:
            self.dropped += 1
            return []
        each.computed = True
        if each.handed or error:
            del self._tries[key]
        ended = PrefillEnded(
            request_id=each.request_id,
            attempt=each.attempt,
            elapsed_ms=(now - each.arrived) * 1000,
            cached_tokens=cached_tokens,
            error=error,
            message=message,
        )
        return [ToRouter(ended)]

    def _handed(self, done: KvDone) -> None:
        key = engine_key(done.request_id, done.attempt)
        each = self._tries.get(key)
        if each is None or done.side != "send":
            return
        each.handed = True
        if each.computed:
            del self._tries[key]

    @staticmethod
    def _answer(message: Prefill, code: Code, sentence: str) -> PrefillEnded:
        return PrefillEnded(
            request_id=message.request_id,
            attempt=message.attempt,
            elapsed_ms=0.0,
            error=code,
            message=sentence,
        )
