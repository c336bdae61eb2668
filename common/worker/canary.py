"""The canary: a tiny request to a worker's own engine that finds an engine which computes wrongly,
or not at all, while its daemon still beats.

Theory of operation: every engine is given the same short prompt with greedy sampling, so that
engines of one fingerprint must generate the same tokens. The request goes to the engine directly
and not through gateway, router and core: nobody is charged for it, no table counts it, and it works
on a prefill worker too. At most one canary runs at a time. Its outputs are removed from the
engine's batches before the core gets them. The prompt repeats itself, because a model's clear
choices do not depend on rounding. It is shorter than a block, so that it is computed anew each time
and leaves nothing in the prefix cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np

from common.clock import Clock
from common.engine.port import Batch, Engine, EngineRequest, Output, engine_key
from common.messages import CanaryAnswer, Load, Role, Sampling
from common.worker.actions import AbortInEngine, AddToEngine

CANARY_ID = "~canary"
"""No client can give its request this id, because request ids have no tilde."""
PROMPT = [40, 41, 42, 43] * 3
SAMPLING = Sampling(max_tokens=8, temperature=0.0, ignore_eos=True)
NOTHING = Sampling(max_tokens=0)
#: A canary is skipped while this share of the engine's sequences runs, or anything waits in it.
BUSY_SHARE = 0.5


class Canary:
    """`enqueue` gives the engine a command, after those that it was given before."""

    def __init__(
        self,
        engine: Engine,
        enqueue: Callable[[AddToEngine | AbortInEngine], None],
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._enqueue = enqueue
        self._clock = clock
        self._attempt = 0
        self._tokens: list[int] = []
        self._ended: asyncio.Future[str] | None = None

    async def run(self, seconds: float) -> CanaryAnswer:
        """Runs one canary. Raises nothing, whatever the engine does."""
        fingerprint = self._engine.info.fingerprint
        why_not = self._why_not()
        if why_not:
            return CanaryAnswer(outcome="skipped", fingerprint=fingerprint, sentence=why_not)
        began, alone = self._clock.monotonic(), _others(self._engine.load(), own=0) == 0
        problem = await self._answer(seconds)
        alone = alone and _others(self._engine.load(), own=1) == 0
        return CanaryAnswer(
            outcome="failed" if problem else "answered",
            fingerprint=fingerprint,
            tokens=tuple(self._tokens),
            alone=alone,
            elapsed_ms=(self._clock.monotonic() - began) * 1000,
            sentence=problem,
        )

    def batch_without_own(self, batch: Batch) -> Batch:
        """The batch without the outputs of the canary."""
        ended = self._ended
        if ended is None:
            return batch
        key = engine_key(CANARY_ID, self._attempt)
        own = [output for output in batch.outputs if output.key == key]
        for output in own:
            self._take(output, ended)
        if not own:
            return batch
        return replace(batch, outputs=[output for output in batch.outputs if output.key != key])

    def on_refused(self, request_id: str, message: str) -> bool:
        """Takes the engine's refusal of a request. False if that request is no canary."""
        if request_id == CANARY_ID and self._ended is not None and not self._ended.done():
            self._ended.set_result(f"the engine refused it: {message}")
        return request_id == CANARY_ID

    def load_without_own(self, load: Load, *, empty: bool) -> Load:
        """What the engine holds besides the canary. If `empty`, the core gave the engine nothing
        and all KV in use is the canary's; otherwise a drain, which waits for an empty engine, would
        have to wait for a moment between two canaries."""
        if self._ended is None:
            return load
        running, waiting = load.running, load.waiting
        return msgspec.structs.replace(
            load,
            running=max(0, running - 1),
            waiting=waiting if running else max(0, waiting - 1),
            kv_used=0.0 if empty else load.kv_used,
        )

    async def _answer(self, seconds: float) -> str:
        """Why the answer is missing or incomplete; empty if it is complete."""
        self._attempt, self._tokens = self._attempt + 1, []
        self._ended = asyncio.get_running_loop().create_future()
        pooling = self._engine.info.pooling
        request = EngineRequest(
            CANARY_ID,
            self._attempt,
            Role.DECODE,
            list(PROMPT),
            SAMPLING if pooling is None else NOTHING,
            pooling=pooling,
        )
        self._enqueue(AddToEngine(request))
        try:
            async with asyncio.timeout(seconds):
                return await self._ended
        except TimeoutError:
            count = len(self._tokens)
            made = f"{count} of {SAMPLING.max_tokens} tokens" if count else "no token"
            return f"{made} within {seconds:g} s"
        finally:
            if not self._ended.done() or self._ended.cancelled():
                self._enqueue(AbortInEngine(CANARY_ID, self._attempt))
            self._ended = None

    def _take(self, output: Output, ended: asyncio.Future[str]) -> None:
        self._tokens += output.token_ids
        if output.pooled:
            self._tokens += marks_of(output.pooled)
        if (output.finish_reason or output.error) and not ended.done():
            ended.set_result(output.message or output.error)

    def _why_not(self) -> str:
        """Why no canary can run now; empty if one can."""
        if self._ended is not None:
            return "another canary is under way"
        load, slots = self._engine.load(), self._engine.info.capacity.max_num_seqs
        if load.waiting or load.running >= slots * BUSY_SHARE:
            return f"{load.running} requests run and {load.waiting} wait in its engine"
        return ""


def marks_of(pooled: bytes) -> list[int]:
    """What engines of one fingerprint must agree on of what they make of a prompt: how many numbers
    it has, which is the greatest, and how many are none (NaN, infinite)."""
    numbers = np.frombuffer(pooled, "<f4")
    return [len(numbers), int(np.argmax(numbers)), int(np.count_nonzero(~np.isfinite(numbers)))]


def _others(load: Load, *, own: int) -> int:
    return max(0, load.running + load.waiting - own)
