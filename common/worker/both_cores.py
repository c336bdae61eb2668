"""The cores of a prefill and of a decode worker, both in force, as one core. Sans-IO.

An attempt is in the table of one of them at most: who decodes a stream here computes its prompt
itself, as any decode worker may. What the engine says of an attempt goes to the core that has it.
"""

from __future__ import annotations

from dataclasses import replace

from common.engine.port import Batch, engine_key
from common.identity import attempt_of_pull
from common.kv.messages import KvDone
from common.messages import Abort, HeldAttempt, Prefill
from common.worker.actions import Action, Dispatched, EngineRefused, Event, WorkerCore


class BothCores:
    """A `WorkerCore`. What both drop is counted by each."""

    dropped = 0

    def __init__(self, prefill: WorkerCore, decode: WorkerCore) -> None:
        self._prefill = prefill
        self._decode = decode

    @property
    def active(self) -> int:
        return self._prefill.active + self._decode.active

    def held_attempts(self) -> list[HeldAttempt]:
        """The streams, the oldest first, and then the prompts."""
        return self._decode.held_attempts() + self._prefill.held_attempts()

    def held_attempt(self, request_id: str, attempt: int) -> HeldAttempt | None:
        held = self._decode.held_attempt(request_id, attempt)
        return held or self._prefill.held_attempt(request_id, attempt)

    def holds(self, key: str) -> bool:
        return self._prefill.holds(key) or self._decode.holds(key)

    def handle(self, event: Event, now: float) -> list[Action]:
        match event:
            case Batch():
                return self._stepped(event, now)
            case Dispatched(message=Prefill()):
                return self._prefill.handle(event, now)
            case Abort():  # of what neither holds, the engine is told, as a prefill worker does
                streams = self._decode.holds(engine_key(event.request_id, event.attempt))
                return (self._decode if streams else self._prefill).handle(event, now)
            case EngineRefused():
                computes = self._prefill.holds(engine_key(event.request_id, event.attempt))
                return (self._prefill if computes else self._decode).handle(event, now)
            case _:  # a prefill worker takes no notice of it
                return self._decode.handle(event, now)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        for held in self._prefill.held_attempts():
            key = engine_key(held.request_id, held.attempt)
            assert not self._decode.holds(key), f"both cores have {key}"

    def _stepped(self, batch: Batch, now: float) -> list[Action]:
        prompts = [output for output in batch.outputs if self._prefill.holds(output.key)]
        handed = [done for done in batch.kv_done if self._prefill.holds(_key_of(done))]
        if not prompts and not handed:
            return self._decode.handle(batch, now)
        streams = [output for output in batch.outputs if not self._prefill.holds(output.key)]
        others = [done for done in batch.kv_done if not self._prefill.holds(_key_of(done))]
        actions = self._decode.handle(replace(batch, outputs=streams, kv_done=others), now)
        return actions + self._prefill.handle(replace(batch, outputs=prompts, kv_done=handed), now)


def _key_of(done: KvDone) -> str:
    return engine_key(*attempt_of_pull((done.request_id, done.attempt)))
