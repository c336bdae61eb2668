"""A tiny request that a worker's own engine answers now and then, so that one which beats but
computes wrongly, or not at all, is found.

Theory of operation: every engine is given the same short prompt, greedy, so that engines of one
fingerprint must make the same tokens. The request goes to the engine beside the core, past router
and gateway: nobody is charged for it, no table counts it, and it works on a prefill worker too. One
is under way at most; its outputs are sifted out of the engine's batches before the core sees them.
The prompt repeats itself, for what a model is sure of does not hang on a rounding, and is shorter
than a block, so that it is computed anew each time and leaves nothing in the prefix cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from common.clock import Clock
from common.engine.port import Batch, Engine, EngineRequest, Output, engine_key
from common.messages import CanaryAnswer, Load, Role, Sampling
from common.worker.actions import AbortInEngine, AddToEngine

CANARY_ID = "~canary"
"""No client can give its request this name: a tilde is no part of a request id."""
PROMPT = [40, 41, 42, 43] * 3
SAMPLING = Sampling(max_tokens=8, temperature=0.0, ignore_eos=True)
BUSY_SHARE = 0.5


class Canary:
    """`order` gives the engine a command, in its turn."""

    def __init__(
        self,
        engine: Engine,
        order: Callable[[AddToEngine | AbortInEngine], None],
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._order = order
        self._clock = clock
        self._attempt = 0
        self._tokens: list[int] = []
        self._ended: asyncio.Future[str] | None = None

    async def fly(self, seconds: float) -> CanaryAnswer:
        """Never raises for what the engine does."""
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

    def sift(self, batch: Batch) -> Batch:
        """The batch without what is the canary's."""
        ended = self._ended
        if ended is None:
            return batch
        key = engine_key(CANARY_ID, self._attempt)
        mine = [output for output in batch.outputs if output.key == key]
        for output in mine:
            self._take(output, ended)
        if not mine:
            return batch
        return replace(batch, outputs=[output for output in batch.outputs if output.key != key])

    def refused(self, request_id: str, message: str) -> bool:
        """The engine does not take it. False: that was somebody else's."""
        if request_id == CANARY_ID and self._ended is not None and not self._ended.done():
            self._ended.set_result(f"the engine refused it: {message}")
        return request_id == CANARY_ID

    def without(self, load: Load, *, empty: bool) -> Load:
        """What the engine holds besides the canary. `empty`: the core gave it nothing, so that all
        KV in use is the canary's: who waits for an empty engine must not wait for a quiet moment
        between two canaries."""
        if self._ended is None:
            return load
        running, waiting = load.running, load.waiting
        return Load(
            running=max(0, running - 1),
            waiting=waiting if running else max(0, waiting - 1),
            kv_used=0.0 if empty else load.kv_used,
            step_age_ms=load.step_age_ms,
            step_ms_p99=load.step_ms_p99,
        )

    async def _answer(self, seconds: float) -> str:
        """Why there is none, or not a whole one; empty when it is whole."""
        self._attempt, self._tokens = self._attempt + 1, []
        self._ended = asyncio.get_running_loop().create_future()
        request = EngineRequest(CANARY_ID, self._attempt, Role.DECODE, list(PROMPT), SAMPLING)
        self._order(AddToEngine(request))
        try:
            async with asyncio.timeout(seconds):
                return await self._ended
        except TimeoutError:
            count = len(self._tokens)
            made = f"{count} of {SAMPLING.max_tokens} tokens" if count else "no token"
            return f"{made} within {seconds:g} s"
        finally:
            if not self._ended.done() or self._ended.cancelled():
                self._order(AbortInEngine(CANARY_ID, self._attempt))
            self._ended = None

    def _take(self, output: Output, ended: asyncio.Future[str]) -> None:
        self._tokens += output.token_ids
        if (output.finish_reason or output.error) and not ended.done():
            ended.set_result(output.message or output.error)

    def _why_not(self) -> str:
        if self._ended is not None:
            return "another canary is under way"
        load, slots = self._engine.load(), self._engine.info.capacity.max_num_seqs
        if load.waiting or load.running >= slots * BUSY_SHARE:
            return f"{load.running} requests run and {load.waiting} wait in its engine"
        return ""


def _others(load: Load, *, own: int) -> int:
    return max(0, load.running + load.waiting - own)
